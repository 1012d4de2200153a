"""Whole numbers in Avro and Protobuf records are found with the schemas that the lake keeps."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from pathlib import Path

import fastavro
import pytest

from lakehouse.operations.erasure.encoded import decoder
from lakehouse.operations.erasure.searching import Search, Values
from lakehouse.operations.erasure.subjects import subjects_in, varint, zigzag

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
AVRO = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "users", "type": {"type": "array", "items": "long"}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "is_first", "type": "boolean"},
        {"name": "ratio", "type": "double", "default": 0.5},
        {"name": "account", "type": ["null", DECIMAL], "default": None},
    ],
}
PROTOBUF = 'syntax = "proto3"; message Payment { int64 user_id = 1; }'


@pytest.fixture
def search(tmp_path: Path) -> Search:
    """Return a search in a lake with an Avro schema, 7, and a Protobuf schema, 8."""
    schemas = tmp_path / "_lakehouse_schemas"
    schemas.mkdir()
    for number, kind, text in ((7, "AVRO", json.dumps(AVRO)), (8, "PROTOBUF", PROTOBUF)):
        said = {"kind": kind, "text": text, "has_references": False}
        (schemas / f"{number}.json").write_text(json.dumps(said))
    return Search(subjects_in(b"4711\n47\nanna-1\n-4712\n"), decoder(str(tmp_path)))


def found(search: Search, *values: bytes) -> list[tuple[int, int, bool]]:
    return sorted((at, line, sure) for (at, line), sure in search.in_values(Values.of(values)).items())


def framed(number: int, body: bytes) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + body


def avro(**payment: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(AVRO)), payment)
    return framed(7, out.getvalue())


def test_an_avro_number_is_certain(search: Search) -> None:
    planted = avro(users=[1, 4711, 47], note="of anna-1", is_first=True)
    other = avro(users=[47110], note=None, is_first=True, ratio=47.5, account=Decimal("4711.5"))
    whole = avro(users=[], note=None, is_first=True, ratio=47.0, account=Decimal("4711.00"))

    assert found(search, planted, other, whole) == [
        *((0, 1, True), (0, 2, True), (0, 3, True)),
        *((2, 1, True), (2, 2, True)),
    ]
    assert search.undecoded == 0


@pytest.mark.parametrize(
    "body",
    [
        b"\x08" + varint(4711),
        b"\x08" + varint(zigzag(4711)),
        b"\x09" + (4711).to_bytes(8, "little"),
        b"\x0d" + (4711).to_bytes(4, "little"),
        b"\x09" + struct.pack("<d", 4711.0),
        b"\x12\x03\x08" + varint(4711),  # in a message inside
        b"\x12\x05\x01\x02" + varint(4711) + b"\x03",  # in a packed list
    ],
)
def test_a_protobuf_number_has_several_readings(search: Search, body: bytes) -> None:
    assert found(search, framed(8, b"\x00" + body)) == [(0, 1, False)]


@pytest.mark.parametrize(
    "indexes",
    [
        b"\x04\x02\x00",  # 1 and 0 in zigzag
        b"\x02\x01\x00",  # the same as plain varints, which older serializers write
        b"\x02\x02\x02",  # 2 and 2 as plain varints, 1 in zigzag
    ],
)
def test_a_number_is_found_in_a_message_within_another(search: Search, indexes: bytes) -> None:
    assert found(search, framed(8, indexes + b"\x08" + varint(4711))) == [(0, 1, False)]
    assert search.undecoded == 0


def test_a_negative_number_is_found_in_protobuf(search: Search) -> None:
    body = b"\x08" + varint(2**64 - 4712)

    assert found(search, framed(8, b"\x00" + body)) == [(0, 4, False)]


def test_what_cannot_be_decoded_is_counted(search: Search) -> None:
    unknown, broken = framed(9, b"4"), framed(7, b"\x09")
    json_text = framed(9, b'{"userId":4711}')  # needs no schema
    keys = (4711).to_bytes(8, "big"), (2**40).to_bytes(8, "big")  # begin like a value with a schema

    assert found(search, unknown, broken, *keys, json_text) == [(2, 1, True), (4, 1, False)]
    assert search.undecoded == 2
