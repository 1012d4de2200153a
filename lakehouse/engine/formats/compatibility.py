"""Compare a schema with a contract, field by field, before records are written.

A field breaks the contract if every record would be refused because of it: the schema lacks a required field,
or the field's type in the schema never matches the contract's type. Other conflicts are only warnings. For
example, if a required field is optional in the schema, only records without the field are refused. If the
schema has a double where the contract expects an integer, only values with a fraction, and values of 1e16 or
more, are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.common.record_lines import RecordFormat
from lakehouse.engine.formats.avro_projection import projection_of
from lakehouse.engine.formats.avro_types import AvroType, UnusableError
from lakehouse.engine.formats.protobuf import compiled
from lakehouse.engine.formats.protobuf_columns import Times, Wanted, taken, taker, time_taker
from lakehouse.engine.formats.protobuf_types import message_class
from lakehouse.storage.kafka.schema_registry import Registered, SchemaKind
from lakehouse.streams.contract import FieldType
from lakehouse.streams.definition import Source

KINDS: Mapping[RecordFormat, SchemaKind] = {
    "avro": "AVRO",
    "protobuf": "PROTOBUF",
    "json-schema": "JSON",
    "json": "JSON",
}
"""The registry's schema type for each record format."""

_AVRO_TIMES = frozenset({"timestamp-millis", "timestamp-micros"})
_LOCAL_TIMES = frozenset({"local-timestamp-millis", "local-timestamp-micros"})
_OTHER_TIMES = frozenset({"time-millis", "time-micros", "timestamp-nanos", "local-timestamp-nanos"})
_AVRO_WHOLE = frozenset({"int", "long", "date"}) | _AVRO_TIMES | _LOCAL_TIMES | _OTHER_TIMES
_AVRO_NUMBERS = _AVRO_WHOLE | {"float", "double", "decimal"}
_AVRO_TYPES: dict[FieldType, frozenset[str]] = {
    FieldType.STRING: frozenset({"string", "enum", "date"}) | _AVRO_TIMES | _LOCAL_TIMES,
    FieldType.LONG: _AVRO_WHOLE,
    FieldType.DOUBLE: _AVRO_NUMBERS,
    FieldType.DECIMAL: _AVRO_NUMBERS,
    FieldType.BOOLEAN: frozenset({"boolean"}),
}
_JSON_TYPES: dict[FieldType, frozenset[str]] = {
    FieldType.STRING: frozenset({"string"}),
    FieldType.LONG: frozenset({"integer"}),
    FieldType.DOUBLE: frozenset({"integer", "number"}),
    FieldType.DECIMAL: frozenset({"integer", "number"}),
    FieldType.BOOLEAN: frozenset({"boolean"}),
}
_AVRO_EVENT_TIMES = frozenset({"int", "long", "string", "timestamp-nanos"}) | _AVRO_TIMES
_JSON_TIMES = frozenset({"integer", "string"})
_NUMBERS_TOO = frozenset({"int", "long", "integer"})
_TEXT_TOO = frozenset({"string"})
_MAYBE_WHOLE = frozenset({"float", "double", "decimal", "number"})


@dataclass(frozen=True)
class Finding:
    """A conflict between a schema and a contract; `breaks` is false if only some records would be refused."""

    text: str
    breaks: bool = True


@dataclass(frozen=True)
class _Found:
    """The types that a field can have in a schema, except null, and whether a record can lack the field."""

    types: frozenset[str]
    may_lack: bool


def findings(source: Source, schema: Registered) -> list[Finding]:
    """Return the conflicts between a source's contract and a schema.

    Raises ValueError if the schema cannot be read.
    """
    wanted = KINDS[source.format]
    if schema.kind != wanted:
        needed = f"{source.topic} has the format {source.format}, which needs {wanted}"
        return [Finding(f"the schema's type is {schema.kind}; {needed}")]
    if schema.kind == "PROTOBUF":
        return list(_of_protobuf(source, schema.text))
    if schema.kind == "AVRO":
        try:
            root = projection_of(source.contract, schema.text).type
        except UnusableError as error:
            return [Finding(f"the schema {error}")]
        return list(_judged(source, lambda path: _in_avro(root, path), _AVRO_TYPES, _AVRO_EVENT_TIMES))
    try:
        parsed = json.loads(schema.text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    return list(_judged(source, lambda path: _in_json(parsed, path), _JSON_TYPES, _JSON_TIMES))


def _judged(
    source: Source,
    find: Callable[[tuple[str, ...]], _Found | None],
    fitting: Mapping[FieldType, frozenset[str]],
    times: frozenset[str],
) -> Iterator[Finding]:
    contract = source.contract
    for field in contract.fields:
        found = find(field.path)
        if found is None:
            if field.required:
                yield Finding(f"{field.name} is required, but the schema lacks it")
            continue
        fits = fitting.get(field.type, found.types) | (_NUMBERS_TOO if field.accepts_numbers else frozenset())
        fits |= _TEXT_TOO if field.accepts_text else frozenset()
        is_whole = field.type is FieldType.LONG or field.accepts_numbers
        maybe = _MAYBE_WHOLE if is_whole else frozenset[str]()
        yield from _of_types(field.name, found, fits, maybe, field.type.value)
        if field.required and found.may_lack:
            yield Finding(f"{field.name} is required, but can be absent or null in the schema", breaks=False)
    found = find(contract.event_time_path)
    if found is not None:
        local = _LOCAL_TIMES if contract.event_time_zone else frozenset()
        number = frozenset({"float", "double", "number"}) if contract.event_time_unit == "s" else frozenset()
        yield from _of_types(contract.event_time, found, times | local | number, _MAYBE_WHOLE, "time")


def _of_types(
    name: str, found: _Found, fits: frozenset[str], maybe: frozenset[str], of: str
) -> Iterator[Finding]:
    """Yield a finding if the field can have types that do not fit.

    `maybe` contains the types of which only some values fit.
    """
    if wrong := sorted(found.types - fits):
        is_never = not found.types & (fits | maybe)
        yield Finding(f"{name} must be a {of}, but can be {' or '.join(wrong)} in the schema", is_never)


def _in_avro(root: AvroType, path: tuple[str, ...]) -> _Found | None:
    """Return the types at a path in an Avro schema, or None if there is no such field."""
    may_lack, type_ = root.is_nullable, root.bare
    for name in path:
        if type_.kind != "record" or name not in type_.names:
            return None
        inner = type_.types[type_.names.index(name)]
        may_lack, type_ = may_lack or inner.is_nullable, inner.bare
    return _Found(frozenset({"a union" if type_.kind == "union" else type_.logical or type_.kind}), may_lack)


def _in_json(schema: Any, path: tuple[str, ...]) -> _Found | None:
    """Return the types at a path in a JSON Schema, or None if there is no such property."""
    may_lack = False
    for name in path:
        if not isinstance(schema, dict) or name not in schema.get("properties", {}):
            return None
        may_lack = may_lack or name not in schema.get("required", ())
        schema = schema["properties"][name]
        if not isinstance(schema, dict):
            return _Found(frozenset(), may_lack)
    given = schema.get("type", [])
    types = frozenset([given] if isinstance(given, str) else given)
    return _Found(types - {"null"}, may_lack or "null" in types)


def _of_protobuf(source: Source, text: str) -> Iterator[Finding]:
    """Yield the conflicts with the first message in a schema, in which any field can be absent."""
    descriptor = message_class(compiled(text), [0]).DESCRIPTOR
    for field in source.contract.fields:
        wanted = Wanted(field.column, field.path, field.type.value, field.required, field.scale)
        found = taken(descriptor, field.path, taker(wanted))
        if not found.is_there and field.required:
            yield Finding(f"{field.name} is required, but the schema lacks it")
        elif found.is_open and field.required:
            yield Finding(f"{field.name} is required, but can be absent in the schema", breaks=False)
        elif found.is_there and not found.is_open and found.get is None and not field.accepts_numbers:
            yield Finding(
                f"{field.name} must be a {field.type.value}, but has a different type in the schema"
            )
    time = taken(descriptor, source.contract.event_time_path, time_taker(Times((), 1, 0, 0)))
    if time.is_there and time.get is None:
        yield Finding(
            f"{source.contract.event_time} must be a time, but has a different type in the schema",
            breaks=False,
        )
