"""Compares a schema with a contract, field by field, before records are written.

A field breaks the contract if every record would be refused for it: the schema lacks a required field, or has
a type that never matches the contract's. A required field that the schema makes optional is a warning: only
records without it are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.contract import FieldType
from lakehouse.formats.protobuf import compiled
from lakehouse.formats.protobuf_columns import Times, Wanted, taken, taker, time_taker
from lakehouse.formats.protobuf_reading import message_class
from lakehouse.kafka.registry_access import RecordFormat
from lakehouse.kafka.schema_registry import Registered, SchemaKind
from lakehouse.stream import Source

KINDS: Mapping[RecordFormat, SchemaKind] = {
    "avro": "AVRO",
    "protobuf": "PROTOBUF",
    "json-schema": "JSON",
    "json": "JSON",
}
"""What a registry calls the schemas of a format."""

_AVRO_TYPES: dict[FieldType, frozenset[str]] = {
    FieldType.STRING: frozenset({"string", "enum"}),
    FieldType.LONG: frozenset({"int", "long"}),
    FieldType.DOUBLE: frozenset({"int", "long", "float", "double", "decimal"}),
    FieldType.DECIMAL: frozenset({"int", "long", "float", "double", "decimal"}),
    FieldType.BOOLEAN: frozenset({"boolean"}),
}
_JSON_TYPES: dict[FieldType, frozenset[str]] = {
    FieldType.STRING: frozenset({"string"}),
    FieldType.LONG: frozenset({"integer"}),
    FieldType.DOUBLE: frozenset({"integer", "number"}),
    FieldType.DECIMAL: frozenset({"integer", "number"}),
    FieldType.BOOLEAN: frozenset({"boolean"}),
}
_AVRO_TIMES = frozenset({"int", "long", "string", "timestamp-millis", "timestamp-micros"})
_JSON_TIMES = frozenset({"integer", "string"})
_LOCAL_TIMES = frozenset({"local-timestamp-millis", "local-timestamp-micros"})
_NUMBERS_TOO = frozenset({"int", "long", "integer"})


@dataclass(frozen=True)
class Finding:
    """A conflict between a schema and a contract, in all records (breaks) or in some (a warning)."""

    text: str
    breaks: bool = True


@dataclass(frozen=True)
class _Found:
    """The types that a field can have in a schema, but for null, and whether a record may lack it."""

    types: frozenset[str]
    may_lack: bool


def findings(source: Source, schema: Registered) -> list[Finding]:
    """Return what the contract of a source has against records of a schema; none: it accepts them.

    Raises ValueError for a schema that cannot be read.
    """
    wanted = KINDS[source.format]
    if schema.kind != wanted:
        return [Finding(f"the schema is of {schema.kind}; {source.topic} has {source.format}, so {wanted}")]
    if schema.kind == "PROTOBUF":
        return list(_of_protobuf(source, schema.text))
    parsed = json.loads(schema.text)
    if schema.kind == "AVRO":
        return list(_judged(source, lambda path: _in_avro(parsed, path), _AVRO_TYPES, _AVRO_TIMES))
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
                yield Finding(f"{field.name} is required, and the schema does not have it")
            continue
        fits = fitting.get(field.type, found.types) | (_NUMBERS_TOO if field.accepts_numbers else frozenset())
        yield from _of_types(field.name, found, fits, field.type.value)
        if field.required and found.may_lack:
            yield Finding(f"{field.name} is required, and a record may lack it or have null", breaks=False)
    found = find(contract.event_time_path)
    if found is not None:
        local = _LOCAL_TIMES if contract.event_time_zone else frozenset()
        number = frozenset({"float", "double", "number"}) if contract.event_time_unit == "s" else frozenset()
        yield from _of_types(contract.event_time, found, times | local | number, "time")


def _of_types(name: str, found: _Found, fits: frozenset[str], of: str) -> Iterator[Finding]:
    if wrong := sorted(found.types - fits):
        is_never = not found.types & fits
        yield Finding(f"{name} is to be a {of}, and can be {' or '.join(wrong)} in the schema", is_never)


def _in_avro(schema: Any, path: tuple[str, ...]) -> _Found | None:
    """Return what an Avro schema has at a path; null if it has nothing there."""
    named: dict[str, Any] = {}
    _collect(schema, named)
    may_lack, types = False, [schema]
    for name in path:
        records = [one for one in types if isinstance(one, dict) and one.get("type") == "record"]
        inner = [one["type"] for record in records for one in record["fields"] if one["name"] == name]
        if not inner:
            return None
        branches = [one for type_ in inner for one in (type_ if isinstance(type_, list) else [type_])]
        may_lack = may_lack or "null" in branches
        types = [named.get(one, one) if isinstance(one, str) else one for one in branches if one != "null"]
    if len(types) > 1 and any(_avro_name(one) not in {"int", "long", "float", "double"} for one in types):
        return _Found(frozenset({"a union"}), may_lack)
    return _Found(frozenset(map(_avro_name, types)), may_lack)


def _collect(schema: Any, named: dict[str, Any]) -> None:
    """Find the types that have names."""
    if isinstance(schema, list):
        for one in schema:
            _collect(one, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            space = schema.get("namespace")
            named.setdefault(schema["name"], schema)
            named.setdefault(f"{space}.{schema['name']}", schema)
        for one in (schema.get("type"), schema.get("items"), schema.get("values")):
            if isinstance(one, dict | list):
                _collect(one, named)
        for one in schema.get("fields", ()):
            _collect(one["type"], named)


def _avro_name(type_: Any) -> str:
    if isinstance(type_, str):
        return type_
    inner = type_.get("logicalType", type_["type"])
    return inner if isinstance(inner, str) and inner not in {"uuid"} else _avro_name(type_["type"])


def _in_json(schema: Any, path: tuple[str, ...]) -> _Found | None:
    """Return what a JSON Schema has at a path; null if it names nothing there."""
    may_lack = False
    for name in path:
        if name not in schema.get("properties", {}):
            return None
        may_lack = may_lack or name not in schema.get("required", ())
        schema = schema["properties"][name]
        if not isinstance(schema, dict):
            return _Found(frozenset(), may_lack)
    given = schema.get("type", [])
    types = frozenset([given] if isinstance(given, str) else given)
    return _Found(types - {"null"}, may_lack or "null" in types)


def _of_protobuf(source: Source, text: str) -> Iterator[Finding]:
    """Yield the findings on the first message of a schema; all of its fields may be absent."""
    descriptor = message_class(compiled(text), [0]).DESCRIPTOR
    for field in source.contract.fields:
        wanted = Wanted(field.column, field.path, field.type.value, field.required, field.scale)
        found = taken(descriptor, field.path, taker(wanted))
        if not found.is_there and field.required:
            yield Finding(f"{field.name} is required, and the schema does not have it")
        elif found.is_there and found.get is None and not field.accepts_numbers:
            yield Finding(f"{field.name} is to be a {field.type.value}, and has another type in the schema")
    time = taken(descriptor, source.contract.event_time_path, time_taker(Times((), 1, 0, 0)))
    if time.is_there and time.get is None:
        yield Finding(
            f"{source.contract.event_time} is to be a time, and has another type in the schema", breaks=False
        )
