"""How a step is executed: with generated code if rows are many, interpreted if they are few.

Spark writes Java for each plan, compiles it, and relies on the JVM to make it fast. That pays from some tens
of thousands of rows on; below that, and in everything that lives for seconds, it is most of the cost. Every
step of a micro-batch knows roughly how many rows it will see before it runs, and chooses. If they are few,
their plans are not adapted between stages either, and they are gathered in one partition, so that nothing is
shuffled: a stage costs more than it would save.

`python -m benchmarks.fixed crossing` prints where the curves cross.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.spark import internals

FEW_ROWS = 20_000
FEW_BYTES = 1 << 20

_GENERATES = "spark.sql.codegen.wholeStage"
_FACTORY = "spark.sql.codegen.factoryMode"
_ADAPTS = "spark.sql.adaptive.enabled"
_SHUFFLED_TO = "spark.sql.shuffle.partitions"
_OPENING = "spark.sql.files.openCostInBytes"
_LARGEST = "spark.sql.files.maxPartitionBytes"


def are_few(*, rows: int = 0, size_bytes: int = 0) -> bool:
    """Tell whether this many rows, in files of this many bytes, are better interpreted."""
    return rows <= FEW_ROWS and size_bytes <= FEW_BYTES


def size_of(rows: DataFrame) -> int:
    """Return the size in bytes of the files that a micro-batch is read from; a huge number if unknown."""
    return internals.estimated_bytes(rows)


def gathered(rows: DataFrame, *, few: bool) -> DataFrame:
    """Return few rows in one partition, where keys meet without a shuffle; many rows unchanged."""
    return rows.coalesce(1) if few else rows


def by_reference(value: Column, row: Column) -> Column:
    """Return a literal that generated code receives by reference; `row` is any column of the frame.

    A number or a time would be part of the code's text, so each new value would be a new class to compile and
    warm up. An array is passed by reference. Which of its elements is used depends on the row, as far as the
    optimizer can tell.
    """
    return F.get(F.array(value, value), row.isNull().cast("int"))


def execute_for(spark: SparkSession, *, few: bool) -> None:
    """Let the session execute what it plans from now on as suits few rows, or many.

    A query's own session keeps this for the source of its next micro-batch, which Spark plans before its size
    is known; most micro-batches are like the one before.
    """
    if (spark.conf.get(_GENERATES) == "false") == few:
        return
    configured = spark.sparkContext.getConf()
    spark.conf.set(_GENERATES, str(not few).lower())
    spark.conf.set(_FACTORY, "NO_CODEGEN" if few else "FALLBACK")
    spark.conf.set(_ADAPTS, "false" if few else configured.get(_ADAPTS, "true"))


@contextlib.contextmanager
def executing_for(spark: SparkSession, *, few: bool) -> Iterator[None]:
    """Do so during the block, and restore the former state afterwards.

    A persisted frame is planned when it is marked, so mark it inside the block.
    """
    before = spark.conf.get(_GENERATES) == "false"
    execute_for(spark, few=few)
    try:
        yield
    finally:
        execute_for(spark, few=before)


@contextlib.contextmanager
def executing_a_handful(spark: SparkSession) -> Iterator[None]:
    """Do so for few rows, and shuffle into one partition what could not be gathered."""
    with executing_for(spark, few=True), having_set(spark, _SHUFFLED_TO, "1"):
        yield


@contextlib.contextmanager
def reading_file_by_file(spark: SparkSession) -> Iterator[None]:
    """Give each file partitions of its own, in what the block executes; Spark puts small files together.

    It does so by what it costs to open a file, in bytes: here as much as a whole partition.
    """
    with having_set(spark, _OPENING, str(spark.conf.get(_LARGEST))):
        yield


@contextlib.contextmanager
def having_set(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a property of the session during the block, and restore its former value afterwards."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))
