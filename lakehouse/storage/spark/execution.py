"""Choose how a step is executed: with generated code for many rows, interpreted for few.

Spark generates Java code for each plan, compiles it, and relies on the JVM to optimize it. That pays off from
some tens of thousands of rows on; for fewer rows, and for short-lived processes, it is most of the cost. Each
step of a micro-batch knows its approximate number of rows before it runs, and chooses. For few rows, adaptive
execution is also off, and the rows are gathered in one partition, so nothing is shuffled: a stage would cost
more than it saves.

`python -m benchmarks.fixed crossing` prints the break-even points.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.storage.spark import internals

FEW_ROWS = 20_000
FEW_BYTES = 1 << 20

_GENERATES = "spark.sql.codegen.wholeStage"
_FACTORY = "spark.sql.codegen.factoryMode"
_ADAPTS = "spark.sql.adaptive.enabled"
_SHUFFLED_TO = "spark.sql.shuffle.partitions"
_OPENING = "spark.sql.files.openCostInBytes"
_LARGEST = "spark.sql.files.maxPartitionBytes"


def are_few(*, rows: int = 0, size_bytes: int = 0) -> bool:
    """Return whether this many rows, in files of this many bytes, are faster without generated code."""
    return rows <= FEW_ROWS and size_bytes <= FEW_BYTES


def size_of(rows: DataFrame) -> int:
    """Return the size in bytes of a micro-batch's files; a huge number if unknown."""
    return internals.estimated_bytes(rows)


def gathered(rows: DataFrame, *, few: bool) -> DataFrame:
    """Coalesce few rows into one partition, so that joins need no shuffle; leave many rows unchanged."""
    return rows.coalesce(1) if few else rows


def by_reference(value: Column, row: Column) -> Column:
    """Return a literal that generated code receives by reference; `row` is any column of the frame.

    A number or a time would be part of the code's text, so each new value would mean a new class to compile
    and warm up. An array is passed by reference, and the row determines which element is used, so the
    optimizer cannot fold it into a constant.
    """
    return F.get(F.array(value, value), row.isNull().cast("int"))


def execute_for(spark: SparkSession, *, few: bool) -> None:
    """Configure the session's next plans for few rows, or for many.

    A query's own session keeps this setting for the source of its next micro-batch, which Spark plans before
    its size is known; most micro-batches are like the previous one.
    """
    if (spark.conf.get(_GENERATES) == "false") == few:
        return
    configured = spark.sparkContext.getConf()
    spark.conf.set(_GENERATES, str(not few).lower())
    spark.conf.set(_FACTORY, "NO_CODEGEN" if few else "FALLBACK")
    spark.conf.set(_ADAPTS, "false" if few else configured.get(_ADAPTS, "true"))


@contextlib.contextmanager
def executing_for(spark: SparkSession, *, few: bool) -> Iterator[None]:
    """Call `execute_for` for the duration of the block, and restore the previous setting afterwards.

    A persisted frame is planned when `persist` is called, so call it inside the block.
    """
    before = spark.conf.get(_GENERATES) == "false"
    execute_for(spark, few=few)
    try:
        yield
    finally:
        execute_for(spark, few=before)


@contextlib.contextmanager
def executing_a_handful(spark: SparkSession) -> Iterator[None]:
    """Execute the block for few rows, and shuffle into one partition where a shuffle is needed."""
    with executing_for(spark, few=True), having_set(spark, _SHUFFLED_TO, "1"):
        yield


@contextlib.contextmanager
def reading_file_by_file(spark: SparkSession) -> Iterator[None]:
    """Read each file in separate partitions during the block; Spark would combine small files.

    How many it combines depends on the cost of opening a file, in bytes, which is set to a whole partition
    here.
    """
    with having_set(spark, _OPENING, str(spark.conf.get(_LARGEST))):
        yield


@contextlib.contextmanager
def having_set(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a property of the session during the block, and restore its previous value afterwards."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))
