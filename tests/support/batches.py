"""Steps that a test runs directly, either with the micro-batches that they plan or with the test's rows.

A new step from `bronze_of`, `silver_of` or `gold_of` knows only its tables, as after a restart.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from lakehouse.engine.layers import bronze, gold, silver
from lakehouse.engine.layers.step import Batch, BatchResult, Permitted, Step
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.testing.kills import take_next
from lakehouse.testing.kills import write_batch as write
from tests.support import pipeline
from tests.support.pipeline import STREAM
from tests.support.streams import under

__all__ = ["bronze_of", "gold_of", "planned", "rows_between", "silver_of", "take", "take_next", "write"]


def take(step: Step, rows: DataFrame, number: int, *, now: datetime) -> BatchResult:
    """Write rows as a step's micro-batch with this number; the table does not record which rows were read."""
    return write(step, Batch(rows, number=number), now=now)


def planned(step: Step) -> Batch:
    """Return the micro-batch that a step plans from its tables. There must be unread rows."""
    batch = step.plan({})
    assert batch is not None, f"nothing waits for {step.name}"
    return batch


def bronze_of(spark: SparkSession, settings: Settings, stream: Stream | None = None) -> Step:
    return bronze.steps(Lake(spark, settings.lake), stream or STREAM, settings, Permitted())[0].make()


def silver_of(spark: SparkSession, settings: Settings, stream: Stream | None = None) -> Step:
    return silver.steps(
        Lake(spark, settings.lake), stream or under(settings, STREAM), settings.run.max_bytes, Permitted()
    )[0].make()


def gold_of(spark: SparkSession, settings: Settings, stream: Stream | None = None) -> Step:
    return gold.steps(Lake(spark, settings.lake), stream or under(settings, STREAM), settings.run.max_bytes)[
        0
    ].make()


def rows_between(
    spark: SparkSession, settings: Settings, table: str, first_offset: int, end_offset: int
) -> DataFrame:
    """Return the bronze or silver rows with offsets in a range that excludes its end."""
    rows = spark.read.format("delta").load(str(pipeline.path_of(settings, table)))
    return rows.where(f"offset >= {first_offset} AND offset < {end_offset}")
