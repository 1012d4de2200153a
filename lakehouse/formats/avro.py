"""Avro as Spark's own reader decodes it: each record by the schema that its writer used.

The contract's fields are taken from the fields of the writer's schema: a compatible type is converted to the
contract's type, and an optional field that the schema lacks is null. If that decides all fields, the record
is not examined further. Any other record is converted to JSON and examined as JSON.

An Avro reader stops at the record's end, and a failing reader returns a struct of nulls. So a record is read
as part of an outer record, whose last field follows it: bytes that no producer can know.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from lakehouse.contract import MOST_PLACES, Field, FieldType
from lakehouse.formats import wire
from lakehouse.formats.schemas import Schemas
from lakehouse.kafka.schema_registry import Registered
from lakehouse.records import decoding, event_times, fields
from lakehouse.spark.columns import Columns
from lakehouse.spark.query_errors import error_line
from lakehouse.stream import Source

_END = uuid.uuid4().bytes
_ENVELOPE, _RECORD, _AFTER = "lakehouse_envelope", "record", "end"
_WHOLE = (IntegerType, LongType)
_NUMBERS = (*_WHOLE, FloatType, DoubleType)
_AS_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def decoded(rows: DataFrame, source: Source, schemas: Schemas) -> DataFrame:
    """Return the records with the columns of `lakehouse.records.decoding`, decoded by these schemas."""
    spark = rows.sparkSession
    writers = tuple(
        (one, schema if schema is None else _writer(spark, schema)) for one, schema in schemas.items()
    )
    return reduce(lambda frame, step: step.added_to(frame), _steps(source, writers), rows)


@dataclass(frozen=True)
class _Writer:
    """A writer's schema, and the type that Spark has for it; `refused`: why it cannot be used."""

    envelope: str
    type: DataType
    refused: str | None = None


@dataclass(frozen=True)
class _Taken:
    """What the contract takes out of a writer's records: a value of a column, and whether that is proven."""

    value: Column
    is_proven: Column


def _writer(spark: SparkSession, schema: Registered) -> _Writer:
    if schema.kind != "AVRO":
        return _Writer("", StructType(), f"is of {schema.kind}, not of AVRO")
    if schema.has_references:
        return _Writer("", StructType(), "refers to other schemas, which is not supported")
    return _read(spark, schema.text)


_writers: dict[str, _Writer] = {}


def _read(spark: SparkSession, text: str) -> _Writer:
    """Return a writer's schema as Spark reads it; some that are right for Avro it does not."""
    if text in _writers:
        return _writers[text]
    try:
        envelope = json.dumps(
            {
                "type": "record",
                "name": _ENVELOPE,
                "fields": [
                    {"name": _RECORD, "type": json.loads(text)},
                    {
                        "name": _AFTER,
                        "type": {"type": "fixed", "name": f"{_ENVELOPE}_end", "size": len(_END)},
                    },
                ],
            }
        )
        nothing = spark.range(0).select(from_avro(F.lit(b""), envelope).alias("it"))
        type_ = nothing.select(f"it.{_RECORD}").schema[0].dataType
        found = _Writer(envelope, type_)
        if not isinstance(type_, StructType):
            found = _Writer(envelope, type_, "is not that of a record")
    except (PySparkException, Py4JError, ValueError) as error:
        found = _Writer("", StructType(), f"cannot be read by Spark: {error_line(error)}")
    _writers[text] = found
    return found


@lru_cache(maxsize=64)
def _steps(source: Source, writers: tuple[tuple[int, _Writer | None], ...]) -> tuple[Columns, ...]:
    """Return the columns that decode the records of these writers, step by step."""
    is_of = {one: wire.first_bytes() == F.lit(wire.header(one)) for one, _ in writers}
    readable = {one: it for one, it in writers if it is not None and it.refused is None}
    marked = F.concat(wire.rest(), F.lit(_END))
    reads = {
        f"_avro_{one}": F.when(is_of[one], from_avro(marked, it.envelope, {"mode": "PERMISSIVE"}))
        for one, it in readable.items()
    }
    refused = wire.not_framed()
    for one, it in writers:
        refused = refused.when(is_of[one], _refusal(one, it))
    refused = F.when(F.col("value").isNotNull(), refused.otherwise(wire.unasked()))
    taken = {one: _taken(source, it.type, F.col(f"_avro_{one}.{_RECORD}")) for one, it in readable.items()}
    types = {field.column: fields.SPARK_TYPES[field.type] for field in source.contract.fields}
    types["event_time"] = TimestampType()
    struct = [
        _of_writer(
            {one: columns[name].value for one, columns in taken.items()}, is_of, type_.simpleString()
        ).alias(name)
        for name, type_ in types.items()
    ]
    proven = {
        one: reduce(Column.__and__, (it.is_proven for it in columns.values()))
        for one, columns in taken.items()
    }
    bodies = {one: F.to_json(f"_avro_{one}.{_RECORD}", _AS_JSON) for one in readable}
    lacks = {one: _lacks(source, it.type) for one, it in readable.items()}
    is_proven = F.coalesce(_of_writer(proven, is_of, "boolean"), F.lit(False))
    steps = (
        reads,
        {decoding.TYPED: F.struct(*struct), decoding.REFUSED: refused},
        {decoding.PROVEN: is_proven & F.col(decoding.REFUSED).isNull()},
        {
            decoding.BODY: F.when(~F.col(decoding.PROVEN), _of_writer(bodies, is_of, "string")),
            decoding.LACKS: _of_writer(lacks, is_of, "array<string>"),
        },
    )
    return tuple(Columns(step) for step in steps if step)


def _of_writer(by_id: Mapping[int, Column], is_of: Mapping[int, Column], type_: str) -> Column:
    """Return the column of the record's own writer; null where it has none."""
    chain = F.when(F.lit(False), F.lit(None).cast(type_))
    for one, column in by_id.items():
        chain = chain.when(is_of[one], column)
    return chain


def _refusal(one: int, it: _Writer | None) -> Column:
    """Return the reasons against a record that names this schema; null for none."""
    if it is None:
        return wire.no_schema(one)
    if it.refused is not None:
        return wire.refusal("undecodable", f"schema {one} {it.refused}")
    after = F.col(f"_avro_{one}.{_AFTER}")
    undecodable = wire.refusal("undecodable", f"the value is no record of schema {one}, or is cut off")
    trailing = wire.refusal("trailing_bytes", f"bytes follow the record of schema {one}")
    return F.when(after.isNull(), undecodable).when(after != F.lit(_END), trailing)


def _lacks(source: Source, type_: DataType) -> Column:
    """Return the columns of required fields that a writer's schema does not have."""
    required = [field for field in source.contract.fields if field.required]
    missing = [field.column for field in required if _found(type_, F.lit(None), field.path) is None]
    return F.array(*map(F.lit, missing)) if missing else F.lit(None).cast("array<string>")


def _taken(source: Source, type_: DataType, record: Column) -> dict[str, _Taken]:
    """Return what the contract takes out of a writer's record, by its columns and `event_time`."""
    contract, taken = source.contract, dict[str, _Taken]()
    for field in contract.fields:
        found = _found(type_, record, field.path)
        nothing = _Taken(F.lit(None).cast(fields.SPARK_TYPES[field.type]), F.lit(not field.required))
        if found is None and len(field.path) > 1:
            nothing = _Taken(nothing.value, F.lit(False))
        taken[field.column] = nothing if found is None else _of_field(field, *found)
    found = _found(type_, record, contract.event_time_path)
    taken["event_time"] = _time(source, *(found or (LongType(), F.lit(None).cast("long"))))
    return taken


def _found(type_: DataType, record: Column, path: tuple[str, ...]) -> tuple[DataType, Column] | None:
    """Return the type and the value at a path; null if the schema has nothing there."""
    for name in path:
        if not isinstance(type_, StructType) or name not in type_.names:
            return None
        type_, record = type_[name].dataType, record.getField(name)
    return type_, record


def _of_field(field: Field, type_: DataType, value: Column) -> _Taken:
    """Return a writer's value in the type of the contract's field, as far as that type holds it."""
    if field.type is FieldType.JSON:
        return _as_json(field, type_, value)
    nothing = _Taken(F.lit(None).cast(fields.SPARK_TYPES[field.type]), F.lit(False))
    optional = F.lit(False) if field.required else value.isNull()
    if field.type is FieldType.STRING and isinstance(type_, StringType):
        is_text = F.is_valid_utf8(value)
        return _Taken(value, optional | (is_text & (value > "") if field.required else is_text))
    if field.type is FieldType.DOUBLE and isinstance(type_, (*_NUMBERS, DecimalType)):
        number = value.cast("double")
        return _Taken(number, optional | (F.abs(number) <= fields.MOST_MAGNITUDE))
    of_type = {FieldType.LONG: _WHOLE, FieldType.BOOLEAN: (BooleanType,), FieldType.DECIMAL: _WHOLE}
    if isinstance(type_, of_type.get(field.type, ())):
        return _Taken(value.cast(fields.SPARK_TYPES[field.type]), optional | value.isNotNull())
    is_held = isinstance(type_, DecimalType) and (field.scale is not None or type_.scale <= MOST_PLACES)
    if field.type is FieldType.DECIMAL and is_held:
        exact = fields.of_scale(value, field.scale)
        return _Taken(exact, optional | exact.isNotNull())
    return nothing


def _as_json(field: Field, type_: DataType, value: Column) -> _Taken:
    """Return a value of any type as a JSON field has it; those that are rarely met are examined further.

    A string is JSON text (`wire.any_json`).
    """
    optional = F.lit(False) if field.required else value.isNull()
    if isinstance(type_, StringType):
        text = wire.any_json(value)
        is_there = text.isNotNull() if field.required else F.lit(True)
        return _Taken(text, optional | (F.is_valid_utf8(value) & is_there))
    if isinstance(type_, StructType | ArrayType | MapType):
        text = F.to_json(F.try_parse_json(F.to_json(value, _AS_JSON)))
        return _Taken(text, optional | text.isNotNull())
    return _Taken(F.lit(None).cast("string"), F.lit(False))


def _time(source: Source, type_: DataType, value: Column) -> _Taken:
    """Return an event time that is accepted; null for what is examined further."""
    if isinstance(type_, TimestampType):
        time = value
    elif isinstance(type_, _WHOLE):
        number = value.cast("long")
        is_time = event_times.is_proven(number, source)
        time = F.when(is_time, event_times.of_number(number, source.contract.event_time_unit))
    else:
        time = F.lit(None).cast("timestamp")
    time = event_times.accepted(time, source)
    return _Taken(time, time.isNotNull())
