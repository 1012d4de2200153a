"""Micro-batches handed to a layer by the test itself: no streaming query, no checkpoint, only what it writes.

A layer made anew by `silver_of` or `gold_of` knows nothing but its tables, as after a new start.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from lakehouse import bronze, gold, silver
from lakehouse.layer import BatchResult, LayerQuery
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.tables import Transaction
from tests import pipeline
from tests.pipeline import STREAM


def take(query: LayerQuery, rows: DataFrame, number: int, *, now: datetime) -> BatchResult:
    """Let a layer process the rows as its micro-batch of this number, at this time."""
    return query.process(rows, Transaction(f"{query.name}:by-hand", number), now)


def bronze_of(spark: SparkSession, settings: Settings, stream: Stream = STREAM) -> LayerQuery:
    return bronze.queries(spark, stream, settings)[0]


def silver_of(spark: SparkSession, settings: Settings, stream: Stream = STREAM) -> LayerQuery:
    return silver.queries(spark, stream, settings)[0]


def gold_of(spark: SparkSession, settings: Settings, stream: Stream = STREAM) -> LayerQuery:
    return gold.queries(spark, stream, settings)[0]


def rows_between(
    spark: SparkSession, settings: Settings, table: str, first_offset: int, end_offset: int
) -> DataFrame:
    """Return the rows of bronze or silver whose offsets lie in a range, the end left out."""
    rows = spark.read.format("delta").load(str(pipeline.path_of(settings, table)))
    return rows.where(f"offset >= {first_offset} AND offset < {end_offset}")
