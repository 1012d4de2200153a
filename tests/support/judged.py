"""Records of one contract, judged in one DataFrame."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import bronze
from lakehouse.engine.records.validation import judge
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.streams.definition import Contract, Source

LANDED = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""The default landing time of records, and their default timestamp in Kafka."""


def judged(
    spark: SparkSession,
    contract: Contract,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    kafka_time: datetime = LANDED,
    first: datetime = datetime(2000, 1, 1, tzinfo=UTC),
) -> list[Row]:
    """Judge records, each a key and a value, and return the rows in order, with times in microseconds."""
    rows = [
        (key, value, None, "t", 0, offset, kafka_time, 0, LANDED, None)
        for offset, (key, value) in enumerate(records)
    ]
    found = judge(
        local_frame(spark, rows, bronze.SCHEMA), Source("t", "t", contract, earliest_event_time=first), None
    )
    return found.withColumn("event_time", F.unix_micros("event_time")).orderBy("offset").collect()
