"""Local Kafka and Redis, which replace a cluster on a laptop."""
