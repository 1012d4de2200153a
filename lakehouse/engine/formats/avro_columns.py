"""Convert Avro fields, as read by `avro_projection`, to columns of the contract's types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from lakehouse.engine.formats import wire
from lakehouse.engine.formats.avro_projection import Projection, Wanted, name_of
from lakehouse.engine.formats.avro_types import AvroType
from lakehouse.engine.records import event_times, fields
from lakehouse.streams.column_types import SPARK_TYPES
from lakehouse.streams.contract import MOST_MAGNITUDE, MOST_PLACES, Field, FieldType, TimeUnit
from lakehouse.streams.definition import Source

_INSTANT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_LOCAL = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_AS_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": _INSTANT,
    "timestampNTZFormat": _LOCAL,
}
_WHOLE = ("int", "long")
_FLOATS = ("float", "double")
_NUMBERS = (*_WHOLE, *_FLOATS)
_END_OF_WHOLE = 1e16  # from this value on, ProtoJSON also writes an exponent
_UNITS: dict[str, TimeUnit] = {"millis": "ms", "micros": "us", "nanos": "ns"}
_YEAR_1_S, _YEAR_10000_S, _DAY_S = -62_135_596_800, 253_402_300_800, 86_400
_MOST = 2**63 - 1


@dataclass(frozen=True)
class Taken:
    """A column's value from a decoded record, and whether the value is proven valid."""

    value: Column
    is_proven: Column


@dataclass(frozen=True)
class _Found:
    """A value in a decoded record, with its Avro type and its Spark type."""

    type: AvroType
    value: Column
    of_spark: DataType

    @property
    def is_number(self) -> bool:
        """Whether Avro encodes the value as a number; it encodes times and dates as numbers, too."""
        return self.type.kind in _NUMBERS

    @property
    def may_have_fraction(self) -> bool:
        return self.type.kind in _FLOATS or self.type.logical == "decimal"

    @property
    def is_bytes(self) -> bool:
        return self.type.kind in ("bytes", "fixed") and self.type.logical is None

    def number(self) -> Column:
        """Return the value as a number, even if Spark has decoded it as a time or a date."""
        name = self.of_spark.typeName()
        if name == "date":
            return F.unix_date(self.value)
        if not name.startswith("timestamp"):
            return self.value
        of_unit = F.unix_millis if (self.type.logical or "").endswith("millis") else F.unix_micros
        return of_unit(self.value.cast("timestamp"))

    def whole(self) -> Column:
        """Return a float, double or decimal as a long, or null if it has a fraction or is too large.

        Spark writes doubles of 10,000,000 and more with an exponent in JSON, and validation would refuse
        them.
        """
        is_whole = (self.value % 1 == 0) & (F.abs(self.value) < _END_OF_WHOLE)
        return F.when(is_whole, self.value.try_cast("long"))

    def at(self, name: str) -> _Found | None:
        """Return a field of a record, or None if the record's schema has no such field."""
        if self.type.kind != "record" or name not in self.type.names:
            return None
        position = self.type.names.index(name)
        known = name_of(position)
        of_spark = self.of_spark[known].dataType if isinstance(self.of_spark, StructType) else self.of_spark
        return _Found(self.type.types[position].bare, self.value.getField(known), of_spark)


def has(type_: AvroType, path: tuple[str, ...]) -> bool:
    """Return whether a schema has a field at a path."""
    for name in path:
        type_ = type_.bare
        if type_.kind != "record" or name not in type_.names:
            return False
        type_ = type_.types[type_.names.index(name)]
    return True


def taken(source: Source, type_: AvroType, record: Column, of_spark: DataType) -> dict[str, Taken]:
    """Return the values for the contract's columns and `event_time` from a decoded record."""
    contract, root = source.contract, _Found(type_.bare, record, of_spark)
    found: dict[str, Taken] = {}
    for field in contract.fields:
        there = _found(root, field.path)
        nothing = Taken(_nothing(field), F.lit(len(field.path) == 1 and not field.required))
        found[field.column] = nothing if there is None else _of_field(field, there)
    there = _found(root, contract.event_time_path)
    found["event_time"] = Taken(F.lit(None).cast("timestamp"), F.lit(False))
    if there is not None:
        found["event_time"] = _time(source, there)
    return found


def _found(root: _Found, path: tuple[str, ...]) -> _Found | None:
    found: _Found | None = root
    for name in path:
        found = None if found is None else found.at(name)
    return found


def _nothing(field: Field) -> Column:
    return F.lit(None).cast(SPARK_TYPES[field.type])


def _of_field(field: Field, found: _Found) -> Taken:
    """Convert a decoded value to the type of the contract's field; the result is null if it does not fit."""
    if field.type is FieldType.JSON:
        return _as_json(field, found)
    optional = F.lit(False) if field.required else found.value.isNull()
    held = _of_string(field, found) if field.type is FieldType.STRING else _of_number(field, found)
    return (
        Taken(_nothing(field), F.lit(False)) if held is None else Taken(held.value, optional | held.is_proven)
    )


def _of_string(field: Field, found: _Found) -> Taken | None:
    """Return text (from a string, enum, time or accepted whole number), or None for any other type."""
    if found.type.is_time_of_spark:
        text = _time_text(found)
        return Taken(text, text.isNotNull())
    if field.accepts_numbers and found.may_have_fraction:
        digits = found.whole().cast("string")
        return Taken(digits, digits.isNotNull())
    if found.type.kind not in ("string", "enum"):
        return None
    is_text = F.is_valid_utf8(found.value)
    return Taken(found.value, is_text & (found.value > "") if field.required else is_text)


def _of_number(field: Field, found: _Found) -> Taken | None:
    """Return a number or a boolean, or None if the Avro type does not fit the contract's type."""
    type_ = found.type
    is_decimal = type_.logical == "decimal"
    if field.type is FieldType.DOUBLE and (found.is_number or is_decimal):
        number = found.number().cast("double")
        return Taken(number, F.abs(number) <= MOST_MAGNITUDE)
    if (
        field.type is FieldType.DECIMAL
        and is_decimal
        and (field.scale is not None or type_.scale <= MOST_PLACES)
    ):
        exact = fields.of_scale(found.value, field.scale)
        return Taken(exact, exact.isNotNull())
    if field.type is FieldType.LONG and found.may_have_fraction:
        whole = found.whole()
        return Taken(whole, whole.isNotNull())
    kinds = {FieldType.LONG: _WHOLE, FieldType.DECIMAL: _WHOLE, FieldType.BOOLEAN: ("boolean",)}
    if type_.kind not in kinds.get(field.type, ()):
        return None
    return Taken(found.number().cast(SPARK_TYPES[field.type]), found.value.isNotNull())


def _as_json(field: Field, found: _Found) -> Taken:
    """Return a value of any type for a JSON field.

    Values of rare types become null here, and are then validated as JSON. A string is parsed as JSON if
    possible (`wire.any_json`).
    """
    value, of_spark = found.value, found.of_spark
    optional = F.lit(False) if field.required else value.isNull()
    if isinstance(of_spark, StringType):
        text = wire.any_json(value)
        is_there = text.isNotNull() if field.required else F.lit(True)
        return Taken(text, optional | (F.is_valid_utf8(value) & is_there))
    if isinstance(of_spark, StructType | ArrayType | MapType):
        text = F.to_json(F.try_parse_json(F.to_json(_with_names(found), _AS_JSON)))
        return Taken(text, optional | text.isNotNull())
    return Taken(_nothing(field), F.lit(False))


def _time(source: Source, found: _Found) -> Taken:
    """Return the event time if it is accepted, or null if it must be validated as JSON."""
    logical, unit = found.type.logical or "", source.contract.event_time_unit
    if found.may_have_fraction and unit != "s":
        number = found.whole()
    elif found.type.kind not in _WHOLE or (logical and not logical.startswith("timestamp-")):
        return Taken(F.lit(None).cast("timestamp"), F.lit(False))
    else:
        unit = _unit(logical) if logical else unit
        number = found.number().cast("long")
    is_time = event_times.is_proven(number, source, unit)  # also checks the accepted range
    return Taken(F.when(is_time, event_times.of_number(number, unit)), is_time)


def body(source: Source, projection: Projection, record: Column, of_spark: DataType) -> Column:
    """Return a decoded record as JSON with only the contract's fields.

    Bytes inside a JSON field are encoded in Base64. In any other field, bytes become an object, to
    distinguish them from a string. An event time that is not a plain number becomes text, because a JSON
    number would be read in the contract's unit.
    """
    of_time = source.contract.event_time_path

    def shown(found: _Found, one: Wanted, path: tuple[str, ...]) -> Column:
        if found.type.kind == "record" and one.inner and not (one.is_value or one.is_whole):
            inner = list(shown_fields(found, one, path))
            return F.when(found.value.isNotNull(), F.struct(*inner)) if inner else found.value
        if one.is_read_whole or found.type.types:
            return _with_names(found)
        if found.is_bytes and not one.inner:
            return F.when(found.value.isNotNull(), F.struct(found.value.alias("bytes")))
        if path == of_time and found.type.kind in _WHOLE and found.type.logical:
            return F.coalesce(_time_text(found), F.concat(F.lit(f"{found.type.logical} "), found.number()))
        return found.value

    def shown_fields(found: _Found, one: Wanted, path: tuple[str, ...]) -> Iterator[Column]:
        for name, inner in one.inner.items():
            there = found.at(name)
            if there is not None:
                yield shown(there, inner, (*path, name)).alias(name)

    root = _Found(projection.type.bare, record, of_spark)
    return F.to_json(shown(root, projection.wanted, ()), _AS_JSON)


def _unit(logical: str) -> TimeUnit:
    return _UNITS[logical.rpartition("-")[2]]


def _time_text(found: _Found) -> Column:
    """Return a time or date in ISO 8601, or null for any other type or for a year outside 1 to 9999."""
    logical, number = found.type.logical or "", found.number().cast("long")
    if logical == "date":
        text = F.date_from_unix_date(number.cast("int")).cast("string")
        return F.when(number.between(_YEAR_1_S // _DAY_S, _YEAR_10000_S // _DAY_S - 1), text)
    if "timestamp-" not in logical:
        return F.lit(None).cast("string")
    unit = _unit(logical)
    per_second = event_times.PER_SECOND[unit]
    least, most = max(_YEAR_1_S * per_second, -_MOST), min(_YEAR_10000_S * per_second - 1, _MOST)
    instant = event_times.of_number(number, unit)
    text = F.date_format(instant, _LOCAL if logical.startswith("local-") else _INSTANT)
    return F.when(number.between(least, most), text)


def _with_names(found: _Found) -> Column:
    """Rename all nested fields of a value to their names in the schema."""
    named = _named(found.of_spark, found.type)
    return found.value if named == found.of_spark else found.value.cast(named)


def _named(of_spark: DataType, type_: AvroType) -> DataType:
    bare = type_.bare
    if isinstance(of_spark, StructType):
        names = bare.names
        types = bare.types
        if bare.kind == "union":
            types = bare.members()
            names = tuple(f"member{position}" for position in range(len(types)))
        inner = zip(of_spark, names, types, strict=True)
        return StructType([StructField(name, _named(one.dataType, t)) for one, name, t in inner])
    if isinstance(of_spark, ArrayType):
        return ArrayType(_named(of_spark.elementType, bare.types[0]))
    if isinstance(of_spark, MapType):
        return MapType(of_spark.keyType, _named(of_spark.valueType, bare.types[0]))
    return of_spark
