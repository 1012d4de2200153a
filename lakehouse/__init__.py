"""A Delta Lake medallion pipeline: Kafka event streams into exact, queryable gold tables."""
