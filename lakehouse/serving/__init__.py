"""The REST API: gold read from Redis and from Delta, without a JVM."""
