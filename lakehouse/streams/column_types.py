"""The Spark types of a contract's fields."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import BooleanType, DataType, DecimalType, DoubleType, LongType, StringType

from lakehouse.streams.contract import MOST_PLACES, FieldType

DECIMAL = DecimalType(38, MOST_PLACES)
SPARK_TYPES: Mapping[FieldType, DataType] = {
    FieldType.STRING: StringType(),
    FieldType.LONG: LongType(),
    FieldType.DOUBLE: DoubleType(),
    FieldType.DECIMAL: DECIMAL,
    FieldType.BOOLEAN: BooleanType(),
    FieldType.JSON: StringType(),
}
