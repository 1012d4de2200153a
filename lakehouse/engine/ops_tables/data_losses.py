"""Data loss that the user has allowed: records that Kafka has dropped, or that cannot be read.

Grain of ops.data_losses: one row per inclusive offset range; key: topic, partition, first_offset. Ranges in a
partition do not overlap. Not every offset in a range is a lost record, because transaction markers and
compacted records also have offsets. `noted_at` is UTC; `query` is the query that skipped the range. A rerun
writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from datetime import datetime

from pyspark.sql import functions as F

from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec, described

SCHEMA = described(
    ("topic", "string", "The Kafka topic."),
    ("partition", "integer", "The Kafka partition."),
    ("first_offset", "long", "The first offset that did not land."),
    ("last_offset", "long", "The last offset that did not land."),
    ("noted_at", "timestamp", "When the range was recorded, UTC."),
    ("query", "string", "The query that skipped the range."),
)
DATA_LOSSES = TableSpec(
    "ops",
    "data_losses",
    SCHEMA,
    stats=("topic", "partition", "first_offset"),
    comment="One row per offset range that was skipped because a user allowed it.",
)
_KEYS = ("topic", "partition", "first_offset")


@dataclass(frozen=True)
class LostRange:
    """An inclusive range of offsets in a partition whose records will not land."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        count = self.last_offset - self.first_offset + 1
        return (
            f"{self.first_offset} to {self.last_offset} of partition {self.partition} of topic {self.topic} "
            f"({count} offset{'s' * (count > 1)})"
        )


def note(lake: Lake, losses: Iterable[LostRange], query: str, now: datetime) -> bool:
    """Record lost offset ranges, except offsets that are already recorded; return whether any were new."""
    path = lake.ensure(DATA_LOSSES)
    ends = {
        (row.topic, row.partition): row.last
        for row in tables.read(lake.spark, path)
        .groupBy("topic", "partition")
        .agg(F.max("last_offset").alias("last"))
        .collect()
    }
    fresh = []
    for loss in losses:
        first = max(loss.first_offset, ends.get((loss.topic, loss.partition), -1) + 1)
        if first <= loss.last_offset:
            fresh.append((*astuple(replace(loss, first_offset=first)), now, query))
    if fresh:
        tables.insert_missing(lake.spark.createDataFrame(fresh, SCHEMA), path, _KEYS, F.lit(True))
    return bool(fresh)
