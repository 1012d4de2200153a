"""Timestamps and headers of Kafka records, as stored in bronze."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

NO_TIMESTAMP = -1  # in Kafka's protocol
KAFKA_TIMES = range(-2_208_988_800_000, 253_370_764_800_000)  # 1900 to 9999
"""Valid Kafka timestamps in epoch milliseconds, including NO_TIMESTAMP (-1), which means no timestamp."""
HEADERS = ArrayType(
    StructType(
        [StructField("key", StringType(), nullable=True), StructField("value", BinaryType(), nullable=True)]
    )
)
"""The type of a record's headers."""


def is_kafka_time(ms: Column) -> Column:
    """Return whether a Kafka timestamp is a valid time: in an accepted year, and not -1 (no timestamp)."""
    return ms.between(KAFKA_TIMES.start, KAFKA_TIMES.stop - 1) & (ms != NO_TIMESTAMP)
