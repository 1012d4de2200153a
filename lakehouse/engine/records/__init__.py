"""Kafka records: fields, validation rules, dead letters and offset ranges."""
