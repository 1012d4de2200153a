"""Records one by one: fields, rules, dead letters, and where records lie in Kafka."""
