"""Ranges of Kafka offsets: conditions with which a reader of a table skips files.

Every table of bronze and silver keeps the minima and maxima of partition and offset of each file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


@dataclass(frozen=True)
class OffsetRange:
    """The offsets of a partition from `first` to `last`, both included."""

    topic: str
    partition: int
    first: int
    last: int


def ranges_of(rows: DataFrame) -> tuple[OffsetRange, ...]:
    """Return the range of offsets that the rows have in each partition."""
    found = (
        rows.groupBy("topic", "partition")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        .collect()
    )
    return tuple(
        sorted((OffsetRange(**row.asDict()) for row in found), key=lambda one: (one.topic, one.partition))
    )


def within(ranges: Sequence[OffsetRange]) -> Column:
    """Select the rows whose coordinates lie in one of the ranges."""
    return reduce(Column.__or__, map(_within, ranges), F.lit(False))


def _within(one: OffsetRange) -> Column:
    place = (F.col("topic") == one.topic) & (F.col("partition") == one.partition)
    return place & F.col("offset").between(one.first, one.last)
