"""Frames from rows in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def local_frame(
    spark: SparkSession, rows: Iterable[Sequence[Any] | Mapping[str, Any]], schema: StructType
) -> DataFrame:
    """Return the rows as a frame held in the JVM; every query would read a list's rows from Python."""
    named = [row if isinstance(row, Mapping) else dict(zip(schema.names, row, strict=True)) for row in rows]
    table = pa.Table.from_pylist(named, schema=to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(table, schema)
