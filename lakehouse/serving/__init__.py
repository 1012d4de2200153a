"""The REST API: what the tables say, read from Redis and from Delta without a JVM."""
