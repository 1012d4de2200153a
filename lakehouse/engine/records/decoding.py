"""Columns that `lakehouse.engine.formats` adds to non-JSON records before validation.

REFUSED  array of reasons for refusing a value that could not be decoded; null if it was decoded
BODY     the record as JSON text or bytes, if it must be validated as JSON; null if it is proven valid
TYPED    a struct of the contract's columns and `event_time` in their own types, null where the record has
         a different type or no value; only Avro and Protobuf have this column and those below
PROVEN   whether TYPED proves that all fields are valid
LACKS    the columns of required fields that the writer's schema lacks, or null if there are none
AGAINST  array of reasons, not visible in the JSON, for refusing fields or `event_time`; null if none
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.engine.records import fields
from lakehouse.engine.records.fields import reason
from lakehouse.engine.records.shown import shown_bytes, with_value
from lakehouse.streams.contract import MOST_MAGNITUDE, Field, FieldType

REFUSED, BODY, TYPED, PROVEN, LACKS = "_refused", "_body", "_typed", "_proven", "_lacks"
AGAINST = "_against"


def typed(name: str) -> Column:
    """Return a column's decoded value from TYPED, or null if TYPED has none."""
    return F.col(TYPED).getField(name)


def reason_against(column: str) -> Column:
    """Return the decoder's reason for refusing the value of a column, or null if there is none."""
    return F.get(F.filter(AGAINST, lambda one: one["column"] == F.lit(column)), 0)


def reason_of(field: Field) -> Column:
    """Return the reason why a decoded field is invalid, or null if it is valid.

    This covers values that JSON cannot express.
    """
    lacks = F.array_contains(LACKS, F.lit(field.column))
    message = F.lit(f"the record's schema has no {field.name}")
    found = F.when(lacks, reason("schema_lacks_field", field.column, message))
    against = reason_against(field.column)
    found = found.when(against.isNotNull(), against)
    value = typed(field.column)
    is_valid = value.isNotNull()  # in the contract's type; in JSON it may have a different type, as times do
    if field.type is FieldType.DOUBLE:
        is_valid = F.abs(value) <= MOST_MAGNITUDE
        is_infinite = F.isnan(value) | value.isin(float("inf"), float("-inf"))
        message = F.concat(F.lit(f"{field.name} is beyond the range of a double: "), value.cast("string"))
        found = found.when(is_infinite, reason("not_finite", field.column, message))
    elif field.type is FieldType.STRING:
        message = with_value(f"{field.name} is not UTF-8", shown_bytes(value.cast("binary")))
        found = found.when(~F.is_valid_utf8(value), reason("not_utf8", field.column, message))
        is_valid = value > ""
    return found.when(is_valid, F.lit(None)).otherwise(fields.reason_of(field))
