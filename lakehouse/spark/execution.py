"""How a step is executed: with generated code where rows are many, without where they are few.

Spark writes Java for each plan, compiles it, and leaves it to the JVM to become fast. That pays from some
tens of thousands of rows on; below, and in everything that lives for seconds, it is most of the cost. Every
step of a micro-batch knows about how many rows it will see before it runs, and chooses. Where they are few
their plans are not adapted between stages either, and they are gathered in one partition, so that nothing is
shuffled: a stage costs more than what it would spare.

`python -m benchmarks.fixed crossing` prints where the curves cross.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

FEW_ROWS = 20_000
FEW_BYTES = 1 << 20

_GENERATES = "spark.sql.codegen.wholeStage"
_FACTORY = "spark.sql.codegen.factoryMode"
_ADAPTS = "spark.sql.adaptive.enabled"


def are_few(*, rows: int = 0, size_bytes: int = 0) -> bool:
    """Tell whether so many rows, in files of so many bytes, are better interpreted."""
    return rows <= FEW_ROWS and size_bytes <= FEW_BYTES


def size_of(rows: DataFrame) -> int:
    """Return the bytes of the files that the rows of a micro-batch are read from; too many where unknown."""
    return int(str(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def gathered(rows: DataFrame, *, few: bool) -> DataFrame:
    """Return few rows in one partition, in which keys meet without a shuffle; many as they are."""
    return rows.coalesce(1) if few else rows


def by_reference(value: Column, row: Column) -> Column:
    """Return a literal that generated code is handed and does not contain; `row` is any column of the frame.

    A number or a time stands in the text of the code, so each new value would be a new class to compile
    and to warm up. An array is handed over, and which of its elements is meant depends on the row, for all
    that the optimizer knows.
    """
    return F.get(F.array(value, value), row.isNull().cast("int"))


def execute_for(spark: SparkSession, *, few: bool) -> None:
    """Let the session execute what it plans from now on as suits few rows, or many.

    A query's own session stays so for the source of its next micro-batch, which Spark plans before anybody
    knows how many rows it has: most are like the one before.
    """
    if (spark.conf.get(_GENERATES) == "false") == few:
        return
    configured = spark.sparkContext.getConf()
    spark.conf.set(_GENERATES, str(not few).lower())
    spark.conf.set(_FACTORY, "NO_CODEGEN" if few else "FALLBACK")
    spark.conf.set(_ADAPTS, "false" if few else configured.get(_ADAPTS, "true"))


@contextlib.contextmanager
def executing_for(spark: SparkSession, *, few: bool) -> Iterator[None]:
    """Do so inside the block, and as before behind it.

    What is persisted is planned when it is marked, so mark it inside.
    """
    before = spark.conf.get(_GENERATES) == "false"
    execute_for(spark, few=few)
    try:
        yield
    finally:
        execute_for(spark, few=before)
