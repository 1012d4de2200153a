"""Convert rows between Python and Spark frames, including dates that Python cannot represent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)


def local_frame(
    spark: SparkSession, rows: Iterable[Sequence[Any] | Mapping[str, Any]], schema: StructType
) -> DataFrame:
    """Return a frame built from Arrow data. A frame built from a list would start Python in each query."""
    named = [row if isinstance(row, Mapping) else dict(zip(schema.names, row, strict=True)) for row in rows]
    table = pa.Table.from_pylist(named, schema=to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(table, schema)


_QUERY = "spark.sql.execution.id"


def collected(rows: DataFrame) -> list[Row]:
    """Collect a frame's rows. If any time is outside Python's range, all times become ISO 8601 text in UTC.

    Python supports the years 1 to 9999.
    """
    try:
        return rows.collect()
    except (ValueError, OverflowError, OSError):
        numbered = rows.toDF(*map(str, range(len(rows.columns))))
        texts = (
            _text(F.col(str(place)), field.dataType).alias(field.name)
            for place, field in enumerate(rows.schema)
        )
        return numbered.select(*texts).collect()


def streamed(rows: DataFrame) -> Iterator[Row]:
    """Yield a frame's rows. Each partition is a separate job, and Python holds one partition at a time.

    This function does not use `DataFrame.toLocalIterator`, whose jobs begin after its query has ended. Spark
    4.2's driver retains such jobs, with their plans and broadcasts, until the driver exits. For the same
    reason, this function clears the execution id that an earlier query has left in the thread's local
    properties.
    """
    rows.sparkSession.sparkContext.setLocalProperty(_QUERY, None)  # type: ignore[arg-type]
    return rows.rdd.toLocalIterator()


def _text(value: Column, type_: DataType) -> Column:
    """Replace times in a value with text, including times in nested fields."""
    if isinstance(type_, StructType):
        fields = (_text(value.getField(one.name), one.dataType).alias(one.name) for one in type_)
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(type_, ArrayType):
        return F.transform(value, lambda one: _text(one, type_.elementType))
    if isinstance(type_, MapType):
        with_keys = F.transform_keys(value, lambda key, _: _text(key, type_.keyType))
        return F.transform_values(with_keys, lambda _, one: _text(one, type_.valueType))
    if not isinstance(type_, (DateType, TimestampType, TimestampNTZType)):
        return value
    text = F.replace(value.cast("string"), F.lit(" "), F.lit("T"))
    return F.concat(text, F.lit("Z")) if isinstance(type_, TimestampType) else text
