"""The pipeline's guarantees, implemented again in plain Python: json, decimal, dictionaries and sorting.

Tests compare the pipeline with this package instead of with itself, so nothing in it is taken from
`lakehouse`, and nothing uses Spark.

    judged = judge_record(CONTRACTS["sales_events"], value, kafka_timestamp_ms, ingested_at_us, watermark_us)
    judged.reasons                                    why it is a dead letter; none: it is clean
    product_sales([Sale("pen", Decimal(3), …), …])    the rows of a gold table, column by column

Times are integers since the epoch, UTC, in the unit at the end of their name. In the rows of gold tables,
which have the tables' column names, they are in microseconds. Money is an exact Decimal.
"""
