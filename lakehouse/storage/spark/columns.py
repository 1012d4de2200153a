"""Columns that are built once and used in every micro-batch.

PySpark builds a column with one or more JVM calls per function, and passes a list of columns element by
element. Without this module, every micro-batch would make thousands of calls for the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame

from lakehouse.storage.spark import internals


class Columns:
    """Columns, keyed by name, for use with every frame that has the columns to which they refer."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = dict(columns)

    def and_more(self, columns: Mapping[str, Column]) -> Columns:
        """Return these columns together with additional columns."""
        return Columns({**self._columns, **columns})

    def of(self, rows: DataFrame) -> DataFrame:
        """Select only these columns from a frame."""
        return internals.select(rows, self._named)

    def added_to(self, rows: DataFrame) -> DataFrame:
        """Add these columns to a frame, replacing existing columns with the same names."""
        return internals.with_columns(rows, self._names, self._bare)

    @cached_property
    def _names(self) -> Any:
        return internals.java_texts(list(self._columns))

    @cached_property
    def _bare(self) -> Any:
        return internals.java_columns(list(self._columns.values()))

    @cached_property
    def _named(self) -> Any:
        return internals.java_columns(_aliased(self._columns))


class Grouped:
    """Named aggregates and their grouping columns, for use with every frame that has the required columns."""

    def __init__(self, by: Sequence[Column], aggregates: Mapping[str, Column]) -> None:
        self._by = by
        self._aggregates = aggregates

    def of(self, rows: DataFrame) -> DataFrame:
        """Return a frame with one row per group: the grouping columns and the aggregates."""
        return internals.aggregate(rows, self._groups, self._first, self._others)

    @cached_property
    def _groups(self) -> Any:
        return internals.java_columns(self._by)

    @cached_property
    def _first(self) -> Any:
        return internals.java_column(_aliased(self._aggregates)[0])

    @cached_property
    def _others(self) -> Any:
        return internals.java_columns(_aliased(self._aggregates)[1:])


def _aliased(columns: Mapping[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]
