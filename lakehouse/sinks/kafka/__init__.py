"""Gold rows and dead letters in Kafka's topics."""
