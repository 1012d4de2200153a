"""Defaults for key columns that are null in silver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.streams.definition import only


@dataclass(frozen=True)
class FilledNulls:
    """A `combine` for gold tables that read one silver table. It replaces nulls with each column's default.

    Readers without Spark use its `defaults` to compute the same keys from a silver row.
    """

    defaults: Mapping[str, str]

    def __call__(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows with the defaults."""
        filled = {column: F.coalesce(column, F.lit(value)) for column, value in self.defaults.items()}
        return only(frames).withColumns(filled)
