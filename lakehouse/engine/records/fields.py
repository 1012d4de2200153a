"""Read a contract's fields from JSON, and give the reasons for refusing a field.

There are two ways to read a field. Spark's typed JSON parser is fast but lenient, so its result is used only
if no other JSON type could have produced it (`is_proven`). All other values are read from the record's
variants, which preserve the JSON type (`looked_up`, `reason`).
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    StringType,
    StructField,
    StructType,
)

from lakehouse.engine.records.shown import shown, shown_json, with_value
from lakehouse.streams.column_types import DECIMAL, SPARK_TYPES
from lakehouse.streams.contract import MOST_MAGNITUDE, Contract, Field, FieldType
from lakehouse.streams.messages import json_path, json_text

# A decimal is first parsed as a double, to exclude JSON strings, and then read from the text.
PARSED_TYPES = {**SPARK_TYPES, FieldType.DECIMAL: DoubleType()}
REASONS = ArrayType(
    StructType(
        [
            StructField("rule", StringType(), nullable=True),
            StructField("column", StringType(), nullable=True),
            StructField("message", StringType(), nullable=True),
        ]
    )
)
_JSON_NAMES = {
    FieldType.STRING: "a string",
    FieldType.LONG: "a whole number",
    FieldType.DOUBLE: "a number",
    FieldType.DECIMAL: "a number",
    FieldType.BOOLEAN: "a boolean",
}
_NOT_WHOLE = "a number with a non-zero fraction, an exponent or more than 38 digits"
_NUMBER_AS_TEXT = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\z"  # JSON's grammar
_WHOLE_AS_TEXT = r"^(-?(?:0|[1-9][0-9]*))(?:\.0+)?\z"
_NOT_A_NUMBER = r"(?i)^[+-]?(?:nan|inf|infinity)\z"
_FITS = r"-?[0-9]{1,29}(?:\.[0-9]{1,9})?"
_FITS_ROUNDED = r"-?[0-9]{1,28}(?:\.[0-9]{1,30})?"  # rounding can add a digit before the decimal point
_WHOLE = r"^(0|-?[1-9][0-9]{0,37})\z"  # whole numbers as Spark's parser returns them, even for strings
_WHOLE_DECIMAL = r"^DECIMAL\(\d+,0\)$"  # a variant's type for 270.0 (stored as 270) and beyond a long
_NUMBER = r"-?([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?"
# The parser accepts numbers with up to 1,000 characters, so longer exponents are always out of range.
_EXPONENT = r"^[+-]?0*[0-9]{1,4}$"


def payload_column(column: str) -> str:
    """Return the name of the column for a field's normalized JSON, if the field is the last in its record."""
    return f"_payload_{column}"


def type_column(column: str) -> str:
    """Return the name of the column for a field's JSON type, as returned by schema_of_variant."""
    return f"_type_{column}"


def exact_column(column: str) -> str:
    """Return the name of the column for a decimal exactly as written in the record."""
    return f"_exact_{column}"


def are_provable(contract: Contract) -> bool:
    """Return whether Spark's typed parser can read all fields and the event time by their names.

    The parser is not used for fields inside objects, because it accepts duplicate names there, whereas
    variants refuse duplicate names.
    """
    paths = [*(field.path for field in contract.fields), contract.event_time_path]
    return all(len(path) == 1 for path in paths) and len(set(paths)) == len(paths)


def variant_at(path: tuple[str, ...]) -> Column:
    """Return the variant at a path in `_record`, or null if the path does not exist."""
    return json_path.within(F.col("_record").getField(path[0]), path[1:])


def written_decimal(text: Column, field: Field) -> Column:
    """Return the decimal that a field has in the text of a flat JSON object, or null if it does not fit.

    If the field is rounded, the number is returned as written. If a name occurs twice, the last occurrence
    wins. A quote after a backslash is part of a string, but any other quoted name before a colon is a key.
    """
    if field.scale is not None:
        return F.regexp_extract(text, _under(field.path[-1], _FITS_ROUNDED), 1)
    return F.regexp_extract(text, _under(field.path[-1], _FITS), 1).try_cast(DECIMAL)


def _under(name: str, literal: str) -> str:
    """Return a pattern for the literal after a name in JSON text.

    The first group is the literal. The pattern is anchored, because otherwise a failing search would restart
    at every character.
    """
    space = r"[ \t\r\n]*"
    return rf'(?s)\A.*(?<!\\)"{re.escape(name)}"{space}:{space}({literal}){space}[,}}]'


def of_scale(number: Column, scale: int | None) -> Column:
    """Return a number or its text as a decimal, rounded once (half up) to the scale."""
    if scale is None:
        return number.try_cast(DECIMAL)
    return number.try_cast(DecimalType(38, scale)).try_cast(DECIMAL)


def _decimal(literal: Column, scale: int | None) -> Column:
    """Return a JSON number in any notation as a decimal, or null if it does not fit decimal(38,9).

    Without a scale, the exact number must fit; with a scale, the rounded number must fit. Exponents are
    checked first, because even `try_cast` fails on an exponent near the greatest integer.
    """
    whole, fraction, exponent = (F.regexp_extract(literal, f"^{_NUMBER}$", group) for group in (1, 2, 3))
    digits = F.concat(whole, fraction)
    significant = F.regexp_replace(digits, "0+$", "")
    shift = F.when(exponent == "", F.lit(0)).when(exponent.rlike(_EXPONENT), exponent.try_cast("int"))
    places = F.length(fraction) - shift - (F.length(digits) - F.length(significant))
    zero = F.lit(0).cast(DECIMAL)  # with any exponent
    fits = places <= DECIMAL.scale if scale is None else shift.isNotNull()
    return F.when(significant == "", zero).when(fits, of_scale(literal, scale))


def last_payload(text: Column, value: Column, field: Field) -> Column:
    """Return a normalized JSON field if it is the record's last field and not a string, or null otherwise.

    `value` comes from Spark's typed parser, which returns all values except strings as written. If the text
    consists of the part before the first occurrence of the field's name, then the name, this value and a
    closing brace, three facts follow: the value belongs to the field, it is not a string, and the parser has
    read the whole text.
    """
    name = f'"{field.path[-1]}":'
    is_last = text == F.concat(F.substring_index(text, name, 1), F.lit(name), value, F.lit("}"))
    return F.when(is_last, F.to_json(F.try_parse_json(value)))


def is_proven(value: Column, field: Field) -> Column:
    """Return whether a value from Spark's typed parser proves that the JSON value has the field's type."""
    if field.type is FieldType.DOUBLE:
        return F.abs(value) <= MOST_MAGNITUDE
    if field.type is FieldType.DECIMAL:
        return F.col(exact_column(field.column)).try_cast("double") == value
    if field.type in {FieldType.LONG, FieldType.BOOLEAN}:
        return value.isNotNull() if field.required else F.lit(True)
    if field.type is FieldType.JSON:
        present = json_text.is_plain(value) | F.col(payload_column(field.column)).isNotNull()
        return present if field.required else value.isNull() | present
    # Spark returns other JSON values as text: true, -1.5, {...}, [...], and 1e400 as "Infinity" with quotes.
    # Half a surrogate pair becomes a question mark. Null may mean that the field is absent. The range from
    # "-" to ":" includes the digits.
    like_number = (value >= "-") & (value < ":")
    like_other = value.startswith("{") | value.startswith("[") | (value == "true") | (value == "false")
    altered = value.startswith('"') | value.contains("?")
    string = (value > "") & ~like_number & ~like_other & ~altered
    if field.accepts_numbers:
        string = string | value.rlike(_WHOLE)
    return string if field.required else value.isNull() | string


def proven(typed: Column, field: Field) -> Column:
    """Return the value of a field that is proven valid, as read by Spark's typed parser."""
    if field.type is FieldType.JSON:
        return F.coalesce(F.col(payload_column(field.column)), typed)
    if field.type is FieldType.DECIMAL:
        exact = F.col(exact_column(field.column))
        return exact if field.scale is None else of_scale(exact, field.scale)
    return typed


def looked_up(variant: Column, text: Column, field: Field) -> Column:
    """Return the value of a field from its variant, or null if the value is of a different type.

    For a string field, a whole number also counts and becomes its digits. For a field with `accepts_text`, a
    string that contains a JSON number also counts.

    `text` is the whole record. For a number with an exponent or too many digits, the variant contains a
    double, so the number is read from the text. The result is null if the number cannot be found, because the
    field's name is escaped or also occurs in a nested object (for a nested field: anywhere else).
    """
    kind = F.schema_of_variant(variant)
    found = _looked_up(variant, kind, text, field)
    if not field.accepts_text:
        return found
    written = F.try_variant_get(variant, "$", "string")
    return F.when(kind == "STRING", _of_text(written, field)).otherwise(found)


def _of_text(written: Column, field: Field) -> Column:
    """Return the number that a string contains, or null if it contains none or one that does not fit."""
    if field.type is FieldType.LONG:
        return F.regexp_extract(written, _WHOLE_AS_TEXT, 1).try_cast("bigint")
    number = F.when(written.rlike(_NUMBER_AS_TEXT), written)
    return number.try_cast("double") if field.type is FieldType.DOUBLE else _decimal(number, field.scale)


def _looked_up(variant: Column, kind: Column, text: Column, field: Field) -> Column:
    if field.type is FieldType.JSON:
        return json_text.from_variant(variant, kind)
    if field.type is FieldType.DECIMAL:
        return _looked_up_decimal(variant, kind, text, field)
    if field.type is FieldType.LONG:
        return F.when(is_whole(kind), F.try_variant_get(variant, "$", "bigint"))
    if field.type is FieldType.STRING:  # a deletion's id may be a whole number
        is_text = (kind == "STRING") | is_whole(kind)
        return F.when(is_text, F.try_variant_get(variant, "$", "string"))
    return F.try_variant_get(variant, "$", SPARK_TYPES[field.type].simpleString())


def _looked_up_decimal(variant: Column, kind: Column, text: Column, field: Field) -> Column:
    name, plain = field.path[-1], F.try_variant_get(variant, "$", "string")
    literal = F.regexp_extract(text, _under(name, _NUMBER), 1)
    is_it = literal.try_cast("double") == F.try_variant_get(variant, "$", "double")
    if len(field.path) > 1:
        is_it = is_it & (F.size(F.split(text, re.escape(f'"{name}"'))) == 2)  # noqa: PLR2004 - it occurs once
    fits = is_number(kind) if field.scale is not None else is_number(kind) & plain.rlike(f"^{_FITS}$")
    return F.when(kind.isin("DOUBLE", "FLOAT"), F.when(is_it, _decimal(literal, field.scale))).when(
        fits, of_scale(plain, field.scale)
    )


def as_written(path: tuple[str, ...]) -> Column:
    """Return the value at a path, formatted for a message, with numbers as written in the record.

    A variant can render a number differently: 1.0 becomes 1, and 1e400 becomes infinity.
    """
    variant = variant_at(path)
    literal = F.regexp_extract(F.col("_rest").cast("string"), _under(path[-1], _NUMBER), 1)
    is_it = literal.try_cast("double") == F.try_variant_get(variant, "$", "double")
    is_it = is_it & is_number(F.schema_of_variant(variant))
    return F.when(is_it, shown(literal)).otherwise(shown_json(variant))


def reason_of(field: Field) -> Column:
    """Return the reason why a field is invalid, or null if it is valid."""
    kind, value = F.col(type_column(field.column)), F.col(field.column)
    found = _reason_of_value(kind, value, field)
    if field.required:
        missing = reason("missing_field", field.column, F.lit(f"{field.name} is missing"))
        null = reason("null_field", field.column, F.lit(f"{field.name} is null"))
        found = F.when(kind.isNull(), missing).when(kind == "VOID", null).otherwise(found)
    elif field.type is not FieldType.JSON:
        found = F.when(kind.isNotNull() & (kind != "VOID"), found)
    if len(field.path) == 1:
        return found
    return F.coalesce(F.when(kind.isNull(), misplaced(field.path, field.column)), found)


def misplaced(path: tuple[str, ...], column: str) -> Column:
    """Return the reason for refusing a record if a value on the path is not an object; otherwise null."""
    reasons = []
    for depth in range(1, len(path)):
        value = variant_at(path[:depth])
        kind = F.schema_of_variant(value)
        must = F.lit(f"{json_path.text_of(path[:depth])} must be an object, not ")
        message = with_value(F.concat(must, json_name(kind)), shown_json(value))
        wrong = reason("wrong_type", column, message)
        reasons.append(F.when(~kind.startswith("OBJECT") & (kind != "VOID"), wrong))
    return F.coalesce(*reasons)


def reason(rule: str, column: str | None, message: Column) -> Column:
    """Return one reason for a dead letter."""
    return F.struct(
        F.lit(rule).alias("rule"), F.lit(column).cast("string").alias("column"), message.alias("message")
    )


def json_name(kind: Column) -> Column:
    """Return the JSON name of a type from schema_of_variant."""
    return (
        F.when(kind == "STRING", "a string")
        .when(kind == "BOOLEAN", "a boolean")
        .when(kind.startswith("OBJECT"), "an object")
        .when(kind.startswith("ARRAY"), "an array")
        .otherwise("a number")
    )


def is_number(kind: Column) -> Column:
    """Return whether a type from schema_of_variant is numeric."""
    return kind.isin("BIGINT", "DOUBLE", "FLOAT") | kind.startswith("DECIMAL")


def is_whole(kind: Column) -> Column:
    """Return whether a type from schema_of_variant is an integer type, as for 270 or 270.0.

    In a variant, a number with an exponent, or with more than 38 digits including zeros, is a double.
    """
    return (kind == "BIGINT") | kind.rlike(_WHOLE_DECIMAL)


def _reason_of_value(kind: Column, value: Column, field: Field) -> Column:
    """Return the reason for refusing a value that is present, or null if it is accepted."""
    if field.type is FieldType.JSON:
        return F.lit(None).cast("struct<rule:string,column:string,message:string>")
    expected, came = _JSON_NAMES[field.type], json_name(kind)
    if field.type is FieldType.STRING:
        typed = kind == "STRING"
        empty = F.when(value == "", reason("empty_string", field.column, F.lit(f"{field.name} is empty")))
        unusable = empty if field.required else F.lit(None)
    elif field.type is FieldType.BOOLEAN:
        typed, unusable = kind == "BOOLEAN", F.lit(None)
    else:
        typed, unusable = is_number(kind), _unusable_number(value, field)
    if field.type is FieldType.LONG or field.accepts_numbers:
        typed = is_whole(kind) if field.type is FieldType.LONG else typed | is_whole(kind)
        expected = expected if field.type is FieldType.LONG else f"{expected} or a whole number"
        came = F.when(is_number(kind), _NOT_WHOLE).otherwise(came)
    if field.accepts_text:
        typed = typed | _is_number_as_text(kind, field)
        expected = f"{expected}, or a string that contains one"
    must = F.lit(f"{field.name} must be {expected}, not ")
    found = as_written(field.path)
    wrong = reason("wrong_type", field.column, with_value(F.concat(must, came), found))
    if field.accepts_text:
        special = (kind == "STRING") & _string_at(field).rlike(_NOT_A_NUMBER)
        no_number = with_value(f"{field.name} must be {_JSON_NAMES[field.type]}, not ", found, "")
        wrong = F.when(special, reason("not_a_number", field.column, no_number)).otherwise(wrong)
    return F.when(typed, unusable).otherwise(wrong)


def _is_number_as_text(kind: Column, field: Field) -> Column:
    pattern = _WHOLE_AS_TEXT if field.type is FieldType.LONG else _NUMBER_AS_TEXT
    return (kind == "STRING") & _string_at(field).rlike(pattern)


def _string_at(field: Field) -> Column:
    return F.try_variant_get(variant_at(field.path), "$", "string")


def _unusable_number(value: Column, field: Field) -> Column:
    found = as_written(field.path)
    if field.type is FieldType.LONG:
        message = with_value(f"{field.name} must be from -2^63 to 2^63 - 1, not ", found, "")
        return F.when(value.isNull(), reason("beyond_long", field.column, message))
    if field.type is FieldType.DECIMAL:
        after = " and 9 after it" if field.scale is None else ""
        most = f"{field.name} must have at most 29 digits before the decimal point{after}"
        return F.when(value.isNull(), reason("beyond_decimal", field.column, with_value(most, found)))
    infinite = value.isNull() | F.isnan(value) | value.isin(float("inf"), float("-inf"))
    message = with_value(f"{field.name} is beyond the range of a double", found)
    beyond = f"{field.name} must be from {-MOST_MAGNITUDE:.0e} to {MOST_MAGNITUDE:.0e}, not "
    return F.when(infinite, reason("not_finite", field.column, message)).when(
        F.abs(value) > MOST_MAGNITUDE, reason("beyond_magnitude", field.column, with_value(beyond, found, ""))
    )
