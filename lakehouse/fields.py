"""The types of a contract's fields: what proves one cheaply, how it is looked up, what can be wrong with it.

A field is read in one of two ways. Spark's typed JSON parser is cheap and tolerant: what it made of a record
counts only where it can have come from nothing but the type asked for (`is_proven`). Everything else is read
from the record's variants, which keep the JSON type (`looked_up`, `reason`).
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, StringType

from lakehouse import payloads
from lakehouse.stream import Field, FieldType

DECIMAL = DecimalType(38, 9)
SPARK_TYPES: dict[FieldType, DataType] = {
    FieldType.STRING: StringType(),
    FieldType.DOUBLE: DoubleType(),
    FieldType.DECIMAL: DECIMAL,
    FieldType.JSON: StringType(),
}
# A decimal is first parsed as a double, which no JSON string can pass for, and then read from the text.
PARSED_TYPES = SPARK_TYPES | {FieldType.DECIMAL: DoubleType()}
_JSON_NAMES = {FieldType.STRING: "a string", FieldType.DOUBLE: "a number", FieldType.DECIMAL: "a number"}
_FITS = r"-?[0-9]{1,29}(?:\.[0-9]{1,9})?"


def type_column(column: str) -> str:
    """Return the name of the column with the JSON type (schema_of_variant) of a field's variant."""
    return f"_type_{column}"


def exact_column(column: str) -> str:
    """Return the name of the column with a decimal as it is written in the record."""
    return f"_exact_{column}"


def written_decimal(text: Column, field: Field) -> Column:
    """Return the decimal that a flat JSON object's text has under the field's name; null where none fits.

    Of a name that is there twice the last one counts. A quote behind a backslash is part of a string, and
    any other quoted name before a colon is a key.
    """
    name = re.escape(field.name)
    pattern = rf'(?s).*(?<!\\)"{name}"[ \t\r\n]*:[ \t\r\n]*({_FITS})[ \t\r\n]*[,}}]'
    return F.regexp_extract(text, pattern, 1).try_cast(DECIMAL)


def is_proven(value: Column, field: Field) -> Column:
    """Tell whether a value that Spark's parser has typed can only come from the JSON type of the field."""
    if field.type is FieldType.DOUBLE:
        return value.isNotNull() & ~F.isnan(value) & ~value.isin(float("inf"), float("-inf"))
    if field.type is FieldType.DECIMAL:
        return F.col(exact_column(field.column)).cast("double") == value
    if field.type is FieldType.JSON:
        return value.isNull() | payloads.is_plain(value)
    # Other JSON values are handed over as their text: true, -1.5, {…}, […], and 1e400 as "Infinity" with the
    # quotes. Half a surrogate pair becomes a question mark. A null may be absent. Between the minus sign and
    # the colon lie the digits.
    like_number = (value >= "-") & (value < ":")
    like_other = value.startswith("{") | value.startswith("[") | (value == "true") | (value == "false")
    altered = value.startswith('"') | value.contains("?")
    string = (value > "") & ~like_number & ~like_other & ~altered
    return string if field.required else value.isNull() | string


def proven(typed: Column, field: Field) -> Column:
    """Return the value of a proven field, from what Spark's parser has typed."""
    return F.col(exact_column(field.column)) if field.type is FieldType.DECIMAL else typed


def looked_up(variant: Column, field: Field) -> Column:
    """Return the value of a field from its variant; null where it is none of the field's type."""
    kind = F.schema_of_variant(variant)
    if field.type is FieldType.JSON:
        return payloads.from_variant(variant, kind)
    if field.type is FieldType.DECIMAL:
        text = F.try_variant_get(variant, "$", "string")
        decimal = text.try_cast(DECIMAL)
        # A number with an exponent or too many digits has become a double.
        same = decimal.cast("double") == F.try_variant_get(variant, "$", "double")
        exact = F.when(kind.isin("DOUBLE", "FLOAT"), same).otherwise(text.rlike(f"^{_FITS}$"))
        return F.when(_is_number(kind) & exact, decimal)
    return F.try_variant_get(variant, "$", SPARK_TYPES[field.type].simpleString())


def reason_of(field: Field) -> Column:
    """Return the reason why a field is no good, or null."""
    kind, value = F.col(type_column(field.column)), F.col(field.column)
    if field.type is FieldType.JSON:
        return F.lit(None).cast("struct<rule:string,column:string,message:string>")
    if field.type is FieldType.STRING:
        typed = kind == "STRING"
        empty = F.when(value == "", reason("empty_string", field.column, F.lit(f"{field.name} is empty")))
        unusable = empty if field.required else F.lit(None)
    else:
        typed, unusable = _is_number(kind), _unusable_number(value, field)
    wrong = F.concat(F.lit(f"{field.name} must be {_JSON_NAMES[field.type]}, not "), json_name(kind))
    found = F.when(typed, unusable).otherwise(reason("wrong_type", field.column, wrong))
    if not field.required:
        return F.when(kind.isNotNull() & (kind != "VOID"), found)
    missing = reason("missing_field", field.column, F.lit(f"{field.name} is missing"))
    null = reason("null_field", field.column, F.lit(f"{field.name} is null"))
    return F.when(kind.isNull(), missing).when(kind == "VOID", null).otherwise(found)


def reason(rule: str, column: str | None, message: Column) -> Column:
    """Return one reason of a dead letter."""
    return F.struct(
        F.lit(rule).alias("rule"), F.lit(column).cast("string").alias("column"), message.alias("message")
    )


def json_name(kind: Column) -> Column:
    """Return what JSON calls the type that schema_of_variant has named."""
    return (
        F.when(kind == "STRING", "a string")
        .when(kind == "BOOLEAN", "a boolean")
        .when(kind.startswith("OBJECT"), "an object")
        .when(kind.startswith("ARRAY"), "an array")
        .otherwise("a number")
    )


def _is_number(kind: Column) -> Column:
    return kind.isin("BIGINT", "DOUBLE", "FLOAT") | kind.startswith("DECIMAL")


def _unusable_number(value: Column, field: Field) -> Column:
    if field.type is FieldType.DECIMAL:
        message = f"{field.name} must have at most 29 digits before the decimal point and 9 after it"
        return F.when(value.isNull(), reason("beyond_decimal", field.column, F.lit(message)))
    infinite = value.isNull() | F.isnan(value) | value.isin(float("inf"), float("-inf"))
    message = f"{field.name} is beyond the range of a double"
    return F.when(infinite, reason("not_finite", field.column, F.lit(message)))
