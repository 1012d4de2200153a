"""Micro-batches handed to a layer by the test itself: no streaming query, no checkpoint, only what it writes.

A layer made anew by `silver_of` or `gold_of` knows nothing but its tables, as after a new start.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from lakehouse.layers import bronze, gold, silver
from lakehouse.layers.query import BatchResult, LayerQuery
from lakehouse.settings import Settings
from lakehouse.stream import Stream
from lakehouse.tables import Lake, Transaction
from tests import pipeline
from tests.pipeline import BRONZE, SOURCE, STREAM


def take(query: LayerQuery, rows: DataFrame, number: int, *, now: datetime) -> BatchResult:
    """Let a layer process the rows as its micro-batch of this number, at this time."""
    return query.process(rows, Transaction(f"{query.name}:by-hand", number), now)


def bronze_of(spark: SparkSession, settings: Settings, stream: Stream = STREAM) -> LayerQuery:
    return bronze.queries(Lake(spark, settings.lake), stream, settings)[0].make()


def plan(settings: Settings, number: int, *, planned_at: datetime, ends: Sequence[int]) -> None:
    """Write the plan of a micro-batch of bronze, and the offsets that those before it reach up to."""
    checkpoint = pipeline.checkpoint_of(settings, BRONZE)
    topic = settings.topic(SOURCE.topic)
    (checkpoint / "sources/0").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "sources/0/0").write_text(f'v1\n{{"{topic}":{{"0":0}}}}')
    header = f'{{"batchWatermarkMs":0,"batchTimestampMs":{int(planned_at.timestamp() * 1000)}}}'
    for batch, end in enumerate(ends[: number + 1]):
        (checkpoint / f"offsets/{batch}").write_text(f'v1\n{header}\n{{"{topic}":{{"0":{end}}}}}')


def silver_of(spark: SparkSession, settings: Settings, stream: Stream = STREAM) -> LayerQuery:
    return silver.queries(Lake(spark, settings.lake), stream, settings)[0].make()


def gold_of(spark: SparkSession, settings: Settings, stream: Stream = STREAM) -> LayerQuery:
    return gold.queries(Lake(spark, settings.lake), stream, settings)[0].make()


def rows_between(
    spark: SparkSession, settings: Settings, table: str, first_offset: int, end_offset: int
) -> DataFrame:
    """Return the rows of bronze or silver whose offsets lie in a range, the end left out."""
    rows = spark.read.format("delta").load(str(pipeline.path_of(settings, table)))
    return rows.where(f"offset >= {first_offset} AND offset < {end_offset}")
