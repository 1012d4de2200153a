"""Local Kafka and Redis, to replace a cluster on a laptop."""
