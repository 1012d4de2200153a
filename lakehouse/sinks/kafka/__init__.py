"""Export of gold rows and dead letters to Kafka topics."""
