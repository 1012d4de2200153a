"""A session without registered tables or views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def without_names(spark: SparkSession) -> Iterator[None]:
    """Drop the session's tables, which are external, and its views, before the block and after it."""
    _forget_names(spark)
    try:
        yield
    finally:
        _forget_names(spark)


def _forget_names(spark: SparkSession) -> None:
    for database in ("bronze", "silver", "gold", "ops"):
        spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")
    for view in spark.sql("SHOW VIEWS").collect():
        spark.catalog.dropTempView(view.viewName)
