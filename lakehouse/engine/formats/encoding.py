"""Encode JSON records in their source's format, for samples, load generators and tests.

    encode = encoder(source, schema_id, schema)
    producer.send(topic, encode(b'{"serviceId": "api", ...}'))

A value that does not match its schema, such as a malformed sample, is sent unencoded, after the five-byte
header.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro

from lakehouse.engine.formats import wire
from lakehouse.engine.formats.contracts import Leaf, Tree, schema_of_contract, subject_of, tree_of
from lakehouse.engine.formats.protobuf import compiled
from lakehouse.engine.formats.protobuf_types import message_class
from lakehouse.storage.kafka.schema_registry import Registered, register
from lakehouse.streams.contract import FieldType, TimeUnit
from lakehouse.streams.definition import Source

Encode = Callable[[bytes | None], bytes | None]
_FIRST_MESSAGE = b"\x00"  # the short form of the index list [0]
_UNFIT = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARTS = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1)}


def registered_encoder(source: Source, topic: str) -> Encode:
    """Register the contract of a source as the schema of its topic, and return an encoder for records.

    Raises RegistryError if the registry refuses the schema. JSON needs no schema.
    """
    if source.format == "json":
        return lambda value: value
    schema = schema_of_contract(source, source.format)
    return encoder(source, register(source.registry, subject_of(topic), schema), schema)


def encoder(source: Source, schema_id: int, schema: Registered) -> Encode:
    """Return an encoder for JSON records. `schema` is the contract's schema, registered as `schema_id`."""
    write = {"avro": _avro, "protobuf": _protobuf}.get(source.format, _as_it_is)(source, schema)
    first = wire.header(schema_id)

    def encode(value: bytes | None) -> bytes | None:
        if value is None:
            return None
        try:
            return first + write(value)
        except _UNFIT:
            return first + value

    return encode


def _as_it_is(_source: Source, _schema: Registered) -> Callable[[bytes], bytes]:
    return lambda value: value


def _avro(source: Source, schema: Registered) -> Callable[[bytes], bytes]:
    parsed, tree = fastavro.parse_schema(json.loads(schema.text)), tree_of(source.contract)
    unit = source.contract.event_time_unit

    def write(value: bytes) -> bytes:
        written = io.BytesIO()
        record = _values(_loads(value), tree, lambda leaf, one: _for_avro(leaf, one, unit))
        fastavro.schemaless_writer(written, parsed, record, strict_allow_default=True)
        return written.getvalue()

    return write


def _for_avro(leaf: Leaf, value: Any, unit: TimeUnit) -> Any:
    if value is None:
        return None
    if leaf.field is None:
        number = _number(value, unit)
        return _EPOCH + number * _PARTS[unit] if unit in {"ms", "us"} else number
    return _for_any(leaf, value)


def _number(time: Any, unit: TimeUnit) -> int:
    """Return an event time as a number. Raises TypeError or ValueError if it is not a time."""
    if isinstance(time, str):
        since = datetime.fromisoformat(time) - _EPOCH
        return since // _PARTS[unit] if unit in _PARTS else since // _PARTS["us"] * 1000
    return _integer(time)


def _for_any(leaf: Leaf, value: Any) -> Any:
    kind = None if leaf.field is None else leaf.field.type
    if kind is FieldType.JSON:
        return json.dumps(value, ensure_ascii=False, default=float)
    if kind is FieldType.DOUBLE and isinstance(value, Decimal):
        return float(value)
    if kind is FieldType.DECIMAL and type(value) is int:
        return Decimal(value)
    if kind is FieldType.LONG and value is not None:
        return _integer(value)  # fastavro would drop a fraction
    if isinstance(value, bool) and kind is not FieldType.BOOLEAN:
        raise TypeError("a boolean is not a number")
    return value


def _integer(value: Any) -> int:
    """Return 270 or 270.0 as an integer. Raises TypeError for any other value, such as 270.5 or 1e3."""
    is_whole = isinstance(value, Decimal) and value % 1 == 0 and (value == 0 or "E" not in str(value))
    if type(value) is not int and not is_whole:
        raise TypeError("the value is not an integer")
    return int(value)


def _protobuf(source: Source, schema: Registered) -> Callable[[bytes], bytes]:
    tree, of = tree_of(source.contract), message_class(compiled(schema.text), [0])

    def write(value: bytes) -> bytes:
        record = of()
        unit = source.contract.event_time_unit
        _fill(record, _values(_loads(value), tree, lambda leaf, one: _for_protobuf(leaf, one, unit)))
        return _FIRST_MESSAGE + bytes(record.SerializeToString())

    return write


def _for_protobuf(leaf: Leaf, value: Any, unit: TimeUnit) -> Any:
    if leaf.field is None:
        return None if value is None else _number(value, unit)
    if leaf.field.type is FieldType.DECIMAL and value is not None:
        if isinstance(value, bool | str):
            raise TypeError("the value is not a number")
        return str(value)
    return _for_any(leaf, value)


def _fill(message: Any, record: Mapping[str, Any]) -> None:
    for name, value in record.items():
        if isinstance(value, Mapping):
            _fill(getattr(message, name), value)
        elif value is not None:
            setattr(message, name, value)


def _loads(value: bytes) -> Any:
    return json.loads(value, parse_float=Decimal)


def _values(record: Any, tree: Tree, of: Callable[[Leaf, Any], Any]) -> Mapping[str, Any]:
    """Return the fields of a record in the tree's order, omitting fields that the record lacks."""
    if unknown := record.keys() - tree.keys():
        raise ValueError(f"the schema lacks these fields: {', '.join(unknown)}")
    return {
        name: of(node, record[name]) if isinstance(node, Leaf) else _values(record[name], node, of)
        for name, node in tree.items()
        if name in record
    }
