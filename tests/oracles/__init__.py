"""What the pipeline promises, again in plain Python: json, decimal, dictionaries and sorting, no Spark.

Tests compare the pipeline with this instead of with itself, so nothing here is taken from `lakehouse`.

    judged = judge_record(CONTRACTS["sales_events"], value, kafka_timestamp_ms, ingested_at_us, watermark_us)
    judged.reasons                                    why it is a dead letter; none: it is clean
    product_sales([Sale("pen", Decimal(3), …), …])    the rows of a gold table, column by column

Times are integers since the epoch, UTC, in the unit that their name ends with; in the rows of gold tables,
which have the tables' column names, they are in microseconds. Money is a Decimal to the last digit.
"""
