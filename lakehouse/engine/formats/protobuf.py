"""Decode Protobuf in Python workers, one batch of records at a time (`protobuf_reading`).

The registry stores a schema as text that only protoc can parse, so the driver compiles each schema once.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from lakehouse.engine.formats import wire
from lakehouse.engine.formats.protobuf_columns import Times, Wanted
from lakehouse.engine.formats.protobuf_reading import Reading
from lakehouse.engine.formats.schemas import Schemas
from lakehouse.engine.records import decoding, event_times, fields
from lakehouse.storage.kafka.schema_registry import Registered
from lakehouse.storage.spark.columns import Columns
from lakehouse.streams.contract import MOST_MAGNITUDE, FieldType
from lakehouse.streams.definition import Source

_READ = "_protobuf"
_COMPILER = str(Path(__file__).with_name("protobuf_compiler.py"))
_MOST_TEXT = 1_048_576  # bytes in a schema's text
_MOST_CPU_S, _MOST_MEMORY = 10, 2 << 30  # per compilation, which usually takes 0.1 s and 0.1 GB
_COMPILED_IN_S = 60  # enough even if the machine is busy
_LONGEST = 500  # characters in an error message
_TRACE = "Traceback (most recent call last):"
_NO_COMPLAINT = re.compile(
    r"^WARNING: All log messages before absl|^[IWEF]\d{4} \d\d:\d\d:\d\d|^\[libprotobuf|: warning: "
)


def decoded(rows: DataFrame, source: Source, schemas: Schemas) -> DataFrame:
    """Decode records with the given schemas, and add the columns listed in `records.decoding`."""
    for step in _steps(source, tuple(schemas.items())):
        rows = step.added_to(rows)
    return rows


@lru_cache(maxsize=64)
def _steps(source: Source, schemas: tuple[tuple[int, Registered], ...]) -> tuple[Columns, ...]:
    """Return the columns that each decoding step adds to records with these schemas."""
    usable, refused = dict[int, bytes](), wire.not_framed()
    for one, schema in schemas:
        is_of = wire.first_bytes() == F.lit(wire.header(one))
        found = _files_of(schema)
        if isinstance(found, str):
            refused = refused.when(is_of, wire.refusal("undecodable", f"schema {one} {found}"))
        else:
            usable[one] = found
    said = F.col(f"{_READ}.refused")
    undecodable = F.array(fields.reason("undecodable", None, said))
    refused = refused.when(said.isNotNull(), undecodable).when(F.col(_READ).isNull(), wire.unasked())
    reading = _reading(source, usable)
    typed = F.struct(
        *(
            _kept(field.type, F.col(f"{_READ}.typed.{field.column}")).alias(field.column)
            for field in source.contract.fields
        ),
        F.col(f"{_READ}.typed.event_time").alias("event_time"),
    )
    return (
        Columns({_READ: _udf(reading)("value")}),
        Columns(
            {
                decoding.TYPED: typed,
                decoding.PROVEN: F.coalesce(F.col(f"{_READ}.proven"), F.lit(False)),
                decoding.BODY: F.col(f"{_READ}.body"),
                decoding.LACKS: F.col(f"{_READ}.lacks"),
                decoding.AGAINST: F.col(f"{_READ}.against"),
                decoding.REFUSED: F.when(F.col("value").isNotNull(), refused),
            }
        ),
    )


def _kept(type_: FieldType, value: Column) -> Column:
    return wire.any_json(value) if type_ is FieldType.JSON else value


def _udf(reading: Reading) -> Callable[..., Column]:
    def read(values: pa.Array) -> pa.Array:
        return reading.read(values)

    decode: Callable[..., Column] = cast("Any", arrow_udf)(read, from_arrow_type(reading.type))
    return decode


def _reading(source: Source, schemas: dict[int, bytes]) -> Reading:
    wanted = tuple(
        Wanted(field.column, field.path, field.type.value, field.required, field.scale)
        for field in source.contract.fields
    )
    contract = source.contract
    times = Times(
        contract.event_time_path,
        event_times.PER_SECOND[contract.event_time_unit],
        *event_times.span_us(source),
    )
    return Reading(wanted, times, schemas, MOST_MAGNITUDE)


@cache
def _files_of(schema: Registered) -> bytes | str:
    """Return a schema's serialized file descriptors, or text that says why the schema cannot be used."""
    if schema.kind != "PROTOBUF":
        return f"is a {schema.kind} schema, not PROTOBUF"
    if schema.has_references:
        return "refers to other schemas, which is not supported"
    try:
        return compiled(schema.text)
    except ValueError as error:
        return f"cannot be compiled: {error}"


@cache
def compiled(text: str) -> bytes:
    """Return the file descriptor set for a schema's text. The schema's own file is last.

    The text is protoc input, or a file descriptor in Base64. Raises ValueError with protoc's first error if
    the text is neither, and ValueError if the text is too long or compiling it exceeds a limit.
    """
    content = text.encode()
    if len(content) > _MOST_TEXT:
        raise ValueError(f"it has {len(content):,} bytes; at most {_MOST_TEXT:,} are allowed")
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-P", _COMPILER, str(_MOST_CPU_S), str(_MOST_MEMORY)]
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                input=content,
                capture_output=True,
                check=False,
                timeout=_COMPILED_IN_S,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"it takes longer than {_COMPILED_IN_S} s") from None
    if done.returncode == -signal.SIGXCPU:
        raise ValueError(f"it takes more than {_MOST_CPU_S} s of CPU time")
    if done.returncode < 0:
        raise ValueError(f"the compiler was killed by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise ValueError(_complaint(done.stderr.decode(errors="replace")))
    return done.stdout


def _complaint(said: str) -> str:
    """Return the compiler's first error, without log lines, warnings and stack traces."""
    lines = [line.strip() for line in said.splitlines()]
    if _TRACE in lines:
        return f"the compiler failed: {lines[-1].partition(':')[0]}"
    found = [line for line in lines if line and not _NO_COMPLAINT.search(line)]
    return found[0][:_LONGEST] if found else "the compiler gave no reason"
