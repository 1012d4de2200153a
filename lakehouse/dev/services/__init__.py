"""Local Kafka and Redis, for working on a laptop without a cluster."""
