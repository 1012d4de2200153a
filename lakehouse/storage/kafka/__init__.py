"""Access to Kafka: the only package that imports its clients."""
