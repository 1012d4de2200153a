"""Choose a step's execution mode: generated code for many rows, interpreted execution for few.

Spark generates Java code for each plan, compiles it, and relies on the JVM to optimize it. Code generation
pays off from some tens of thousands of rows on. For fewer rows, and in short-lived processes, it is most of
the cost. Each step of a micro-batch knows its approximate number of rows before it runs, and chooses a mode.
For few rows, adaptive execution is also off, and the rows are gathered in one partition. With a single
partition, nothing is shuffled, because an additional stage would cost more than it saves.

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
    """Return whether this many rows, in files of this size, are processed faster without generated code."""
    return rows <= FEW_ROWS and size_bytes <= FEW_BYTES


def size_of(rows: DataFrame) -> int:
    """Return the size in bytes of a micro-batch's files, or a huge number if it is unknown."""
    return internals.estimated_bytes(rows)


def gathered(rows: DataFrame, *, few: bool) -> DataFrame:
    """Coalesce few rows into one partition, so that joins need no shuffle; leave many rows unchanged."""
    return rows.coalesce(1) if few else rows


def by_reference(value: Column, row: Column) -> Column:
    """Return a literal that generated code receives by reference. `row` is any column of the frame.

    Generated code would contain a number or a time as text, so each new value would require a new class to be
    compiled and warmed up. An array, however, is passed by reference. Which element is used depends on the
    row, so the optimizer cannot fold the array into a constant.
    """
    return F.get(F.array(value, value), row.isNull().cast("int"))


def execute_for(spark: SparkSession, *, few: bool) -> None:
    """Configure the session's next plans for few rows, or for many.

    A query's own session keeps this setting for the source of its next micro-batch, because Spark plans the
    source before its size is known. Most micro-batches are about as large as the previous one.
    """
    if (spark.conf.get(_GENERATES) == "false") == few:
        return
    configured = spark.sparkContext.getConf()
    spark.conf.set(_GENERATES, str(not few).lower())
    spark.conf.set(_FACTORY, "NO_CODEGEN" if few else "FALLBACK")
    spark.conf.set(_ADAPTS, "false" if few else configured.get(_ADAPTS, "true"))


@contextlib.contextmanager
def executing_for(spark: SparkSession, *, few: bool) -> Iterator[None]:
    """During the block, configure the session as `execute_for` does; then restore the previous setting.

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
    """During the block, read each file in separate partitions; otherwise Spark would combine small files.

    How many files Spark combines depends on the cost of opening a file, in bytes. Here, that cost is set to
    the size of a whole partition.
    """
    with having_set(spark, _OPENING, str(spark.conf.get(_LARGEST))):
        yield


@contextlib.contextmanager
def having_set(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a session property during the block, and restore its previous value afterwards."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))
