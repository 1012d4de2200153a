"""Rows for Python, whose calendar ends where Spark's goes on."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)


def collected(rows: DataFrame) -> list[Row]:
    """Return the rows; if one has a time that Python does not know, all times are ISO 8601 texts, UTC.

    Python knows the years 1 to 9999.
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
    """Yield the rows; Python holds a partition of them at a time, and each is a job.

    Not by `DataFrame.toLocalIterator`: the jobs of that begin when its query has ended, and the driver of
    Spark 4.2 then keeps each of them, with its plan and all that it has broadcast, for as long as it lives.
    """
    return rows.rdd.toLocalIterator()


def _text(value: Column, type_: DataType) -> Column:
    """Return a value with texts for times, wherever they are in it."""
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
