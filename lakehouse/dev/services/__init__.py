"""Local Kafka and Redis, for work on a laptop without a cluster."""
