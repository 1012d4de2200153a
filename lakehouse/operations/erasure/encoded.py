"""The whole numbers in Avro and Protobuf values whose schema is registered, without Spark.

Text in such a value stands in it as UTF-8, so it is found without its schema. A number is packed, and only
the schema tells where.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import Any

from lakehouse.engine.formats import wire
from lakehouse.engine.formats.protobuf_indexes import readings_of
from lakehouse.engine.formats.schemas import DIRECTORY
from lakehouse.storage.files import files_of
from lakehouse.storage.kafka.schema_registry import Registered, registered

_LONG = 8  # a Kafka key that is a long can begin like a value with a schema
_MOST_DEPTH = 40
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


Numbers = Mapping[int, bool]
"""The whole numbers in a value, and whether each is certain: a Protobuf field has several readings."""


def decoder(lake: str) -> Callable[[bytes], Numbers | None]:
    """Return a function that decodes values with the schemas that a lake keeps.

    The function returns None for a value that begins like one with a schema, and cannot be decoded. JSON text
    needs no schema.
    """

    @cache
    def schema_of(number: int) -> Callable[[bytes], Numbers] | None:
        found = files_of(lake).find(f"{DIRECTORY}/{number}.json")
        if found is None:
            return None
        try:
            return _reader(registered(json.loads(found.text())))
        except (KeyError, RecursionError, TypeError, ValueError):
            return None

    def decoded(value: bytes) -> Numbers | None:
        number = wire.id_of(value)
        if len(value) < wire.LENGTH or not 0 < number <= wire.GREATEST_ID:
            return {}
        read = schema_of(number)
        if read is None:
            return {} if len(value) == _LONG or _is_json(value[wire.LENGTH :]) else None
        try:
            return read(value[wire.LENGTH :])
        except Exception:  # noqa: BLE001 - whatever a decoder raises for bytes that its schema does not fit
            return None

    return decoded


def _is_json(body: bytes) -> bool:
    """Return whether bytes are a JSON object or list. A few bytes of Avro can look like a JSON number."""
    try:
        return isinstance(json.loads(body), dict | list)
    except (RecursionError, ValueError):
        return False


def _reader(schema: Registered | None) -> Callable[[bytes], Numbers] | None:
    if schema is None or (schema.has_references and schema.kind == "AVRO"):
        return None
    if schema.kind == "AVRO":
        try:
            from fastavro import parse_schema, schemaless_reader
        except ModuleNotFoundError:  # the extra `formats`
            return None
        parsed = parse_schema(json.loads(schema.text))
        return lambda data: dict.fromkeys(_in(schemaless_reader(io.BytesIO(data), parsed, None)), True)
    if schema.kind == "PROTOBUF":
        return lambda data: dict.fromkeys(_message(data), False)
    return lambda _data: {}  # JSON is text


def _in(value: Any) -> Iterator[int]:
    """Yield the whole numbers in a decoded Avro value."""
    if isinstance(value, dict):
        for one in value.values():
            yield from _in(one)
    elif isinstance(value, list):
        for one in value:
            yield from _in(one)
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        yield from _whole(value)


def _whole(value: float | Decimal) -> Iterator[int]:
    if math.isfinite(value) and value == (whole := int(value)):
        yield whole


def _message(data: bytes) -> Iterator[int]:
    """Yield every reading of every number in a Protobuf value that begins with its message's indexes.

    Some indexes are valid in two encodings, so the message begins at one of two positions. Raises ValueError
    if there is a message at neither.
    """
    numbers, is_message = set[int](), False
    for _, at in readings_of(data):
        try:
            numbers.update(_fields(data[at:]))
        except (IndexError, ValueError):
            continue
        is_message = True
    if not is_message:
        raise ValueError("not a message")
    yield from numbers


def _fields(data: bytes, depth: int = 0) -> Iterator[int]:
    """Yield every reading of every number in a Protobuf message, also inside bytes that may be a message.

    Raises ValueError or IndexError for other data.
    """
    at = 0
    while at < len(data):
        tag, at = _packed(data, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _packed(data, at)
            yield from _of_varint(number)
        elif kind in (_FIXED64, _FIXED32):
            end = at + (8 if kind == _FIXED64 else 4)
            if end > len(data):
                raise ValueError("the message ends early")
            yield from (int.from_bytes(data[at:end], "little", signed=signed) for signed in (False, True))
            yield from _whole(struct.unpack("<d" if kind == _FIXED64 else "<f", data[at:end])[0])
            at = end
        elif kind == _BYTES:
            length, at = _packed(data, at)
            inner, at = data[at : at + length], at + length
            if at > len(data):
                raise ValueError("the message ends early")
            yield from _inside(inner, depth)
        else:
            raise ValueError("not a message")


def _inside(inner: bytes, depth: int) -> Iterator[int]:
    """Yield the numbers in bytes: as a message, and as a packed list of numbers."""
    if depth == _MOST_DEPTH:
        return
    for numbers in (_fields(inner, depth + 1), _list(inner)):
        try:
            yield from list(numbers)
        except (IndexError, ValueError):
            continue


def _list(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = _packed(data, at)
        yield from _of_varint(number)


def _of_varint(number: int) -> Iterator[int]:
    yield number
    yield number - (1 << 64) if number >= 1 << 63 else number
    yield (number >> 1) ^ -(number & 1)


def _packed(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte
            return number & (2**64 - 1), at
        if shift > 63:  # noqa: PLR2004 - ten bytes at most
            raise ValueError("not a number")
