"""The REST API: serves gold rows from Redis and Delta, without a JVM."""
