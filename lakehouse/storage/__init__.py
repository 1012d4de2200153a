"""The only code that touches Delta tables, Spark, Kafka and object stores."""
