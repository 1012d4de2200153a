"""Choose the mode in which Spark executes a step, by the number of rows.

Spark generates Java code for each plan, compiles it, and relies on the JVM to optimize it. It also shuffles
the rows, and replans the query between stages. In a micro-batch, this overhead is most of the cost. Each step
knows its approximate number of rows before it runs, and chooses a mode accordingly: see `Amount`.

`python -m benchmarks.rounds --amount FEW --amount SOME --amount MANY` prints the break-even points.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import IntEnum

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.storage.spark import internals

FEW_ROWS = 10_000
SOME_ROWS = 100_000
BYTES_A_ROW = 52  # in bronze files

_GENERATES = "spark.sql.codegen.wholeStage"
_FACTORY = "spark.sql.codegen.factoryMode"
_ADAPTS = "spark.sql.adaptive.enabled"
_SHUFFLED_TO = "spark.sql.shuffle.partitions"
_OPENING = "spark.sql.files.openCostInBytes"
_LARGEST = "spark.sql.files.maxPartitionBytes"


class Amount(IntEnum):
    """How many rows a plan processes. This determines how Spark executes it.

    MANY  generated code for whole stages, adaptive plans, and shuffles
    SOME  one partition, so that nothing is shuffled, and generated code for single expressions
    FEW   one partition, and interpreted expressions
    """

    MANY = 0
    SOME = 1
    FEW = 2


def amount_of(*, rows: int = 0, size_bytes: int = 0) -> Amount:
    """Return the cheapest mode for this number of rows, or for input files of this size."""
    most = max(rows, size_bytes // BYTES_A_ROW)
    return Amount.FEW if most <= FEW_ROWS else Amount.SOME if most <= SOME_ROWS else Amount.MANY


def size_of(rows: DataFrame) -> int:
    """Return the estimated size of a micro-batch's files in bytes, or a huge number if it is unknown."""
    return internals.estimated_bytes(rows)


def gathered(rows: DataFrame, amount: Amount) -> DataFrame:
    """Coalesce the rows into one partition, so that joins need no shuffle. Leave MANY rows unchanged."""
    return rows if amount is Amount.MANY else rows.coalesce(1)


def broadcast(rows: DataFrame, amount: Amount) -> DataFrame:
    """Mark the rows for a broadcast join. Leave MANY rows unchanged."""
    return rows if amount is Amount.MANY else F.broadcast(rows)


def by_reference(value: Column, row: Column) -> Column:
    """Return a literal that is passed to generated code by reference. `row` is any column of the frame.

    Generated code would contain a number or a time as text, so each new value would require a new class to be
    compiled and warmed up. An array is passed by reference instead. Which element is used depends on the row,
    so the optimizer cannot fold the expression into a constant.
    """
    return F.get(F.array(value, value), row.isNull().cast("int"))


def execute_for(spark: SparkSession, amount: Amount) -> None:
    """Configure the session so that its next plans suit this number of rows.

    A query's own session keeps this setting for the source of its next micro-batch, because Spark plans the
    source before its size is known. Most micro-batches are about as large as the previous one.
    """
    if _amount(spark) is amount:
        return
    many, configured = amount is Amount.MANY, spark.sparkContext.getConf()
    spark.conf.set(_GENERATES, str(many).lower())
    spark.conf.set(_FACTORY, "NO_CODEGEN" if amount is Amount.FEW else "FALLBACK")
    spark.conf.set(_ADAPTS, configured.get(_ADAPTS, "true") if many else "false")


def _amount(spark: SparkSession) -> Amount:
    if spark.conf.get(_GENERATES) != "false":
        return Amount.MANY
    return Amount.FEW if spark.conf.get(_FACTORY) == "NO_CODEGEN" else Amount.SOME


@contextlib.contextmanager
def executing_for(spark: SparkSession, amount: Amount) -> Iterator[None]:
    """Configure the session for the block as `execute_for` does, and restore its settings afterwards.

    A persisted frame is planned when it is persisted, so persist it inside the block.
    """
    before = _amount(spark)
    execute_for(spark, amount)
    try:
        yield
    finally:
        execute_for(spark, before)


@contextlib.contextmanager
def executing_a_handful(spark: SparkSession) -> Iterator[None]:
    """Execute the block in mode FEW, and shuffle into one partition if a shuffle is needed."""
    with executing_for(spark, Amount.FEW), having_set(spark, _SHUFFLED_TO, "1"):
        yield


@contextlib.contextmanager
def reading_file_by_file(spark: SparkSession) -> Iterator[None]:
    """Read each file in its own partitions during the block. Otherwise, Spark would combine small files.

    How many files Spark combines depends on the cost of opening a file, in bytes. The block sets that cost
    to the size of a whole partition.
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
