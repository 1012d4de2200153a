"""Single records: fields, rules, dead letters, and positions in Kafka."""
