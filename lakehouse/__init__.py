"""A Delta Lake medallion pipeline: Kafka event streams to exact, queryable gold tables."""
