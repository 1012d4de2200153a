"""Access to Kafka. Only this package imports Kafka's clients."""
