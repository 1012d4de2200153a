"""Columns that are built once and used in every micro-batch.

PySpark builds a column by calls to the JVM, one or more for each function in it, and passes a list of columns
element by element. A micro-batch would make thousands of calls, always for the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.classic.column import _to_java_column, _to_seq
from pyspark.sql.utils import get_active_spark_context


class Columns:
    """Columns by name, for any frame in which they can be resolved."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = dict(columns)

    def of(self, rows: DataFrame) -> DataFrame:
        """Return a frame with only these columns."""
        return DataFrame(rows._jdf.select(self._named), rows.sparkSession)

    def added_to(self, rows: DataFrame) -> DataFrame:
        """Return the frame with these columns added; existing ones of the same names are replaced."""
        return DataFrame(rows._jdf.withColumns(self._names, self._bare), rows.sparkSession)

    @cached_property
    def _names(self) -> Any:
        return _to_seq(get_active_spark_context(), list(self._columns))

    @cached_property
    def _bare(self) -> Any:
        return _to_seq(get_active_spark_context(), list(self._columns.values()), _to_java_column)

    @cached_property
    def _named(self) -> Any:
        named = [column.alias(name) for name, column in self._columns.items()]
        return _to_seq(get_active_spark_context(), named, _to_java_column)
