"""Decode Avro with Spark's own reader, using each record's writer schema.

Each field of the contract is read from the corresponding field of the writer schema. A compatible type is
converted to the contract's type, and an optional field that the schema lacks is null. If this proves every
field valid, the record needs no further validation. Otherwise, the record's contract fields are converted to
JSON, and the JSON is validated. If a schema cannot be used, records with this schema become dead letters
(`avro_types` and `avro_projection` list the reasons).

An Avro reader ignores bytes after a record, and Spark returns a struct of nulls if decoding fails. Each
record is therefore read as the first field of an outer record, whose second field contains bytes that no
producer can know. After decoding, the second field is null if decoding failed, and it differs from the
appended bytes if extra bytes follow the record.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, TimestampType

from lakehouse.common.memory import on_forget
from lakehouse.common.printable import printable
from lakehouse.engine.formats import wire
from lakehouse.engine.formats.avro_columns import Taken, body, has, taken
from lakehouse.engine.formats.avro_projection import AFTER, RECORD, Projection, projection_of
from lakehouse.engine.formats.avro_types import AvroType, UnusableError
from lakehouse.engine.formats.schemas import Schemas
from lakehouse.engine.records import decoding, fields
from lakehouse.storage.kafka.schema_registry import Registered
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.query_errors import error_line, has_ended, is_heap_full
from lakehouse.streams.column_types import SPARK_TYPES
from lakehouse.streams.definition import Source

_END = uuid.uuid4().bytes
_MOST_SAID = 300  # characters of Spark's error message


def decoded(rows: DataFrame, source: Source, schemas: Schemas) -> DataFrame:
    """Decode records with the given schemas, and add the columns listed in `records.decoding`."""
    spark = rows.sparkSession
    writers = tuple((one, _writer(spark, source, schema)) for one, schema in schemas.items())
    return reduce(lambda frame, step: step.added_to(frame), _steps(source, writers), rows)


_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
"""Without CORRECTED, Spark refuses times before 1900, because older versions used another calendar."""


@dataclass(frozen=True, eq=False)
class _Reader:
    """A reader for the records of one writer's schema.

    `of_spark` is the Spark type of the decoded records.
    """

    projection: Projection
    of_spark: DataType

    def taken(self, source: Source, record: Column) -> dict[str, Taken]:
        """Return the values in a record for the contract's columns and `event_time`."""
        return taken(source, self.projection.type, record, self.of_spark)

    def body(self, source: Source, record: Column) -> Column:
        """Return a record as JSON, for validation."""
        return body(source, self.projection, record, self.of_spark)


_Writer = _Reader | str
"""The reader for a writer's schema, or the reason why the schema cannot be used."""


def _writer(spark: SparkSession, source: Source, schema: Registered) -> _Writer:
    if schema.kind != "AVRO":
        return f"is a {schema.kind} schema, not AVRO"
    if schema.has_references:
        return "refers to other schemas, which is not supported"
    return _read(spark, source, schema.text)


@lru_cache(maxsize=wire.MOST_IDS)
def _read(spark: SparkSession, source: Source, text: str) -> _Reader | str:
    """Return the reader for a schema's text, or the reason why Spark cannot use the schema.

    Raises Spark's original error if Spark has stopped or is out of memory.
    """
    try:
        projection = projection_of(source.contract, text, len(_END))
        read = spark.range(0).select(_decoded(projection, F.lit(b"")).alias("it"))
        reader = _Reader(projection, read.select(f"it.{RECORD}").schema[0].dataType)
        record = F.col(f"it.{RECORD}")
        taken_ = reader.taken(source, record).values()
        read.select(
            reader.body(source, record), *(one.value for one in taken_), *(one.is_proven for one in taken_)
        )
    except UnusableError as error:
        return str(error)
    except (PySparkException, Py4JError, ValueError) as error:
        if has_ended(spark) or is_heap_full(error):
            raise
        return f"cannot be read by Spark: {printable(error_line(error))[:_MOST_SAID]}"
    return reader


on_forget(_read.cache_clear)


def _decoded(projection: Projection, value: Column) -> Column:
    """Decode a record and the bytes after it. Both results are null if the value cannot be decoded."""
    marked = F.concat(F.lit(projection.first), value, F.lit(_END))
    return from_avro(marked, projection.writer, {**_OPTIONS, "avroSchema": projection.reader})


def _read_of(projection: Projection, is_its: Column) -> Column:
    """Return the decoded value, or null if the value has a different schema id or is too long."""
    is_read = is_its if projection.most is None else is_its & ~_is_large(projection.most)
    return F.when(is_read, _decoded(projection, wire.rest()))


@lru_cache(maxsize=64)
def _steps(source: Source, writers: tuple[tuple[int, _Writer], ...]) -> tuple[Columns, ...]:
    """Return the columns that each decoding step adds to records with these writer schemas."""
    is_of = {one: wire.first_bytes() == F.lit(wire.header(one)) for one, _ in writers}
    readers = {one: it for one, it in writers if isinstance(it, _Reader)}
    reads = {f"_avro_{one}": _read_of(it.projection, is_of[one]) for one, it in readers.items()}
    refused = wire.not_framed()
    for one, it in writers:
        refused = refused.when(is_of[one], _refusal(one, it))
    refused = F.when(F.col("value").isNotNull(), refused.otherwise(wire.unasked()))
    records = {one: F.col(f"_avro_{one}.{RECORD}") for one in readers}
    taken_ = {one: it.taken(source, records[one]) for one, it in readers.items()}
    types = {field.column: SPARK_TYPES[field.type] for field in source.contract.fields}
    types["event_time"] = TimestampType()
    struct = [
        _of_writer(
            {one: columns[name].value for one, columns in taken_.items()}, is_of, type_.simpleString()
        ).alias(name)
        for name, type_ in types.items()
    ]
    proven = {
        one: reduce(Column.__and__, (it.is_proven for it in columns.values()))
        for one, columns in taken_.items()
    }
    bodies = {one: it.body(source, records[one]) for one, it in readers.items()}
    lacks = {one: _lacks(source, it.projection.type) for one, it in readers.items()}
    is_proven = F.coalesce(_of_writer(proven, is_of, "boolean"), F.lit(False))
    steps = (
        reads,
        {decoding.TYPED: F.struct(*struct), decoding.REFUSED: refused},
        {decoding.PROVEN: is_proven & F.col(decoding.REFUSED).isNull()},
        {
            decoding.BODY: F.when(~F.col(decoding.PROVEN), _of_writer(bodies, is_of, "string")),
            decoding.LACKS: _of_writer(lacks, is_of, "array<string>"),
            decoding.AGAINST: F.lit(None).cast(fields.REASONS),
        },
    )
    return tuple(Columns(step) for step in steps if step)


def _of_writer(by_id: Mapping[int, Column], is_of: Mapping[int, Column], type_: str) -> Column:
    """Select, for each record, the column for its schema id; null if there is no such column."""
    chain = F.when(F.lit(False), F.lit(None).cast(type_))
    for one, column in by_id.items():
        chain = chain.when(is_of[one], column)
    return chain


def _refusal(one: int, it: _Writer) -> Column:
    """Return the reasons for refusing a record with this schema id, or null if there are none."""
    if isinstance(it, str):
        return wire.refusal("undecodable", f"schema {one} {it}")
    after, most = F.col(f"_avro_{one}.{AFTER}"), it.projection.most
    undecodable = wire.refusal("undecodable", f"the value does not match schema {one}, or is truncated")
    trailing = wire.refusal("trailing_bytes", f"extra bytes follow the record (schema {one})")
    found = F.when(after.isNull(), undecodable).when(after != F.lit(_END), trailing)
    if most is None:
        return found
    large = f"the value could have too many items: with schema {one}, at most {most:,} bytes are allowed"
    return F.when(_is_large(most), wire.refusal("undecodable", large)).otherwise(found)


def _is_large(most: int) -> Column:
    """Return whether a value is long enough to contain more items than fit in memory."""
    return F.octet_length("value") > most


def _lacks(source: Source, type_: AvroType) -> Column:
    """Return the columns of the required fields that a writer schema lacks."""
    required = [field for field in source.contract.fields if field.required]
    missing = [field.column for field in required if not has(type_, field.path)]
    return F.array(*map(F.lit, missing)) if missing else F.lit(None).cast("array<string>")
