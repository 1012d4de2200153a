"""The REST API, which serves gold rows from Redis and Delta without a JVM."""
