"""Kafka records: fields, validation rules and dead letters."""
