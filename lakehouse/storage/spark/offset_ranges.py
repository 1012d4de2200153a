"""Ranges of Kafka offsets, and conditions with which a reader can skip files.

Every bronze and silver table stores the minimum and maximum partition and offset of each file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.group import GroupedData


@dataclass(frozen=True)
class OffsetRange:
    """The offsets in a partition from `first` to `last`, both inclusive."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        """Return the range as written in options: topic/partition/first, or topic/partition/first-last."""
        last = "" if self.last == self.first else f"-{self.last}"
        return f"{self.topic}/{self.partition}/{self.first}{last}"


def ranges_of(rows: DataFrame) -> tuple[OffsetRange, ...]:
    """Return, for each partition, the range from the lowest to the highest offset in the rows."""
    return _ranges(rows.groupBy("topic", "partition"))


def runs_of(rows: DataFrame) -> tuple[OffsetRange, ...]:
    """Return the ranges of consecutive offsets in the rows, which have one row per record."""
    in_order = Window.partitionBy("topic", "partition").orderBy("offset")
    run = F.col("offset") - F.row_number().over(in_order)
    return _ranges(rows.withColumn("_run", run).groupBy("topic", "partition", "_run"))


def _ranges(rows: GroupedData) -> tuple[OffsetRange, ...]:
    found = rows.agg(F.min("offset").alias("first"), F.max("offset").alias("last")).collect()
    ranges = (OffsetRange(row.topic, row.partition, row.first, row.last) for row in found)
    return tuple(sorted(ranges, key=lambda one: (one.topic, one.partition, one.first)))


def within(ranges: Sequence[OffsetRange]) -> Column:
    """Return a condition that is true for rows whose topic, partition and offset are in one of the ranges."""
    return reduce(Column.__or__, map(_within, ranges), F.lit(False))


def _within(one: OffsetRange) -> Column:
    place = (F.col("topic") == one.topic) & (F.col("partition") == one.partition)
    return place & F.col("offset").between(one.first, one.last)
