"""The types of a contract's fields: how each is proven cheaply, how it is looked up, and what can be wrong.

A field is read in one of two ways. Spark's typed JSON parser is cheap and tolerant: its result counts only if
nothing but the required type can have produced it (`is_proven`). Everything else is read from the record's
variants, which keep the JSON type (`looked_up`, `reason`).
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, StringType

from lakehouse.messages import json_text
from lakehouse.stream import Field, FieldType

DECIMAL = DecimalType(38, 9)
SPARK_TYPES: dict[FieldType, DataType] = {
    FieldType.STRING: StringType(),
    FieldType.DOUBLE: DoubleType(),
    FieldType.DECIMAL: DECIMAL,
    FieldType.JSON: StringType(),
}
# A decimal is first parsed as a double, which no JSON string can pass for, then read from the text.
PARSED_TYPES = SPARK_TYPES | {FieldType.DECIMAL: DoubleType()}
_JSON_NAMES = {FieldType.STRING: "a string", FieldType.DOUBLE: "a number", FieldType.DECIMAL: "a number"}
_FITS = r"-?[0-9]{1,29}(?:\.[0-9]{1,9})?"
_NUMBER = r"-?([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?"
# The parser reads numbers of up to 1,000 characters, so no other exponent brings their digits into range.
_EXPONENT = r"^[+-]?0*[0-9]{1,4}$"
MOST_MAGNITUDE = 1e140
"""The greatest magnitude of a double. Squares of such values, and sums of the squares, are doubles too."""


def payload_column(column: str) -> str:
    """Return the column name of a JSON field that ends its record, as it is kept."""
    return f"_payload_{column}"


def type_column(column: str) -> str:
    """Return the column name of the JSON type (schema_of_variant) of a field's variant."""
    return f"_type_{column}"


def exact_column(column: str) -> str:
    """Return the column name of a decimal as it is written in the record."""
    return f"_exact_{column}"


def written_decimal(text: Column, field: Field) -> Column:
    """Return the decimal under the field's name in a flat JSON object's text; null where none fits.

    If a name occurs twice, the last one counts. A quote after a backslash is part of a string; any other
    quoted name before a colon is a key.
    """
    return F.regexp_extract(text, _under(field.name, _FITS), 1).try_cast(DECIMAL)


def _under(name: str, literal: str) -> str:
    """Return the pattern for a literal, its first group, under a name in a JSON text.

    It is anchored: a search that finds nothing would otherwise begin anew at every character.
    """
    space = r"[ \t\r\n]*"
    return rf'(?s)\A.*(?<!\\)"{re.escape(name)}"{space}:{space}({literal}){space}[,}}]'


def _exactly(literal: Column) -> Column:
    """Return a JSON number in any spelling as a decimal; null if decimal(38,9) does not hold all of it.

    Even a cast that tries fails on an exponent near the greatest integer.
    """
    whole, fraction, exponent = (F.regexp_extract(literal, f"^{_NUMBER}$", group) for group in (1, 2, 3))
    digits = F.concat(whole, fraction)
    significant = F.regexp_replace(digits, "0+$", "")
    shift = F.when(exponent == "", F.lit(0)).when(exponent.rlike(_EXPONENT), exponent.try_cast("int"))
    places = F.length(fraction) - shift - (F.length(digits) - F.length(significant))
    zero = F.lit(0).cast(DECIMAL)  # with any exponent
    return F.when(significant == "", zero).when(places <= DECIMAL.scale, literal.try_cast(DECIMAL))


def last_payload(text: Column, value: Column, field: Field) -> Column:
    """Return a JSON field as it is kept if it is the last of its record, and no string; else null.

    `value` is from Spark's typed parser, which passes on what is no string as it is written. If that, the
    first time that the field's name is there, and a closing brace make the whole text, then it is the field's
    value, no string has passed for it, and the parser has left nothing unread.
    """
    name = f'"{field.name}":'
    is_last = text == F.concat(F.substring_index(text, name, 1), F.lit(name), value, F.lit("}"))
    return F.when(is_last, F.to_json(F.try_parse_json(value)))


def is_proven(value: Column, field: Field) -> Column:
    """Tell whether a value from Spark's typed parser can only come from the field's JSON type."""
    if field.type is FieldType.DOUBLE:
        return F.abs(value) <= MOST_MAGNITUDE
    if field.type is FieldType.DECIMAL:
        return F.col(exact_column(field.column)).cast("double") == value
    if field.type is FieldType.JSON:
        return value.isNull() | json_text.is_plain(value) | F.col(payload_column(field.column)).isNotNull()
    # Spark passes other JSON values on as text: true, -1.5, {…}, […], and 1e400 as "Infinity" with the
    # quotes. Half a surrogate pair becomes a question mark. A null may be absent. Between the minus sign and
    # the colon lie the digits.
    like_number = (value >= "-") & (value < ":")
    like_other = value.startswith("{") | value.startswith("[") | (value == "true") | (value == "false")
    altered = value.startswith('"') | value.contains("?")
    string = (value > "") & ~like_number & ~like_other & ~altered
    return string if field.required else value.isNull() | string


def proven(typed: Column, field: Field) -> Column:
    """Return the value of a proven field, from Spark's typed parser."""
    if field.type is FieldType.JSON:
        return F.coalesce(F.col(payload_column(field.column)), typed)
    return F.col(exact_column(field.column)) if field.type is FieldType.DECIMAL else typed


def looked_up(variant: Column, text: Column, field: Field) -> Column:
    """Return the value of a field from its variant; null if it has another type.

    `text` is the record. For a number with an exponent or too many digits the variant has a double, so the
    number is read from the text. If it is not found there, because its name is escaped or also occurs in a
    nested object, it has no value.
    """
    kind = F.schema_of_variant(variant)
    if field.type is FieldType.JSON:
        return json_text.from_variant(variant, kind)
    if field.type is FieldType.DECIMAL:
        plain = F.try_variant_get(variant, "$", "string")
        literal = F.regexp_extract(text, _under(field.name, _NUMBER), 1)
        is_it = literal.try_cast("double") == F.try_variant_get(variant, "$", "double")
        return F.when(kind.isin("DOUBLE", "FLOAT"), F.when(is_it, _exactly(literal))).when(
            _is_number(kind) & plain.rlike(f"^{_FITS}$"), plain.try_cast(DECIMAL)
        )
    return F.try_variant_get(variant, "$", SPARK_TYPES[field.type].simpleString())


def reason_of(field: Field) -> Column:
    """Return the reason why a field is invalid, or null."""
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
    """Return JSON's name for the type that schema_of_variant has named."""
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
    beyond = f"{field.name} must be from {-MOST_MAGNITUDE:.0e} to {MOST_MAGNITUDE:.0e}"
    return F.when(infinite, reason("not_finite", field.column, F.lit(message))).when(
        F.abs(value) > MOST_MAGNITUDE, reason("beyond_magnitude", field.column, F.lit(beyond))
    )
