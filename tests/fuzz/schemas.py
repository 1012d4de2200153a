"""Schemas as a registry may have them, ordinary and hostile, and bytes that are their records, or nearly.

    avro(random, contract)       the text of a schema, and a writer of bodies for it
    protobuf(random, contract)   the same; its bodies begin with the message's indexes

Nothing here reads a schema: texts and bytes are composed according to the specifications of both formats.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto

Body = Callable[[Random], bytes]
Made = tuple[str, Body]

_MOST_BYTES = 4_000  # in one body
_SIMPLE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL = (
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "timestamp-nanos"),
    ("long", "local-timestamp-millis"),
    ("long", "local-timestamp-micros"),
    ("string", "uuid"),
    ("string", "date"),
    ("int", "timestamp-millis"),
    ("bytes", "decimal"),
    ("double", "decimal"),
    ("long", "nothing of Avro"),
)
_NAMES = (
    "value",
    "Value",
    "VALUE",
    "a",
    "A",
    "b",
    "id",
    "key",
    "timestamp",
    "event_time",
    "record",
    "end",
    "lakehouse_envelope",
    "_",
    "a b",
    "",
    "1a",
    "a.b",
    "é",
    "null",
    "`a`",
    "a`b",
    "$",
    "x" * 5_000,
    "\u2028",
    "\x00",
)
_LENGTHS = (0, 1, 2, -1, -2, 63, 64, 2**20, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, -(2**63))
_AT_MS = 1_767_225_600_000
_WHOLE = (0, 1, -1, 7, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), _AT_MS, _AT_MS, _AT_MS * 1000)
_TEXTS = (
    b"x",
    b"user",
    b"",
    b"\x00",
    b"\xff\xfe",
    "🚚".encode(),
    b"x" * 3_000,
    b"12.5",
    b"2026-01-01T00:00:00Z",
)
_WELL_KNOWN = (
    "Timestamp",
    "Duration",
    "Struct",
    "Value",
    "ListValue",
    "Any",
    "FieldMask",
    "Empty",
    "DoubleValue",
    "StringValue",
    "Int64Value",
    "BytesValue",
)
_IMPORTS = ("timestamp", "wrappers", "struct", "any", "duration", "field_mask", "empty")
_SCALARS = (
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
)


def avro(random: Random, names: Sequence[str]) -> Made:
    """Return a schema whose fields mostly have these names, and a writer of its records."""
    made = random.choice((_usual, _usual, _usual, _any_type, *_HOSTILE))
    schema = made(random, names)
    text = schema if isinstance(schema, str) else json.dumps(schema)
    if random.random() < 0.15:
        text = _mutated(random, text)

    def body(random: Random) -> bytes:
        written = bytearray()
        named: dict[str, Any] = {}
        try:
            _write(random, schema, named, written, 0)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError, OverflowError):
            written += random.randbytes(random.randint(0, 40))
        return _spoiled(random, bytes(written))

    return text, body


def _usual(random: Random, names: Sequence[str]) -> Any:
    chosen = [name for name in names if random.random() < 0.95]
    fields = [{"name": name, "type": _type_for(random, name)} for name in chosen]
    for name in random.sample(("more", "rest", "data", "x"), random.choice((0, 0, 1, 3))):
        fields += [{"name": name, "type": _any_type(random, names)}]
    random.shuffle(fields)
    return {"type": "record", "name": "Usual", "namespace": "of.all", "fields": fields}


def _type_for(random: Random, name: str) -> Any:
    usual: Any = "string" if "id" in name.lower() or "name" in name.lower() else "double"
    if "time" in name.lower():
        usual = random.choice(("long", {"type": "long", "logicalType": "timestamp-millis"}, "string"))
    if random.random() < 0.15:
        usual = _any_type(random, (name,))
    return ["null", usual] if random.random() < 0.3 else usual


def _any_type(random: Random, names: Sequence[str], depth: int = 0) -> Any:
    if depth > 4 or random.random() < 0.4:
        return random.choice(_SIMPLE)

    def inner() -> Any:
        return _any_type(random, names, depth + 1)

    def record() -> Any:
        fields = [{"name": one, "type": inner()} for one in random.choices((*_NAMES, *names), k=number % 5)]
        return {"type": "record", "name": random.choice((f"R{number}", "R", "Usual")), "fields": fields}

    def logical() -> Any:
        of, logical = random.choice(_LOGICAL)
        precision, scale = (
            random.choice((0, 1, 9, 38, 39, 10**9, -1)),
            random.choice((0, 1, 9, 38, -1, 10**9)),
        )
        return {"type": of, "logicalType": logical, "precision": precision, "scale": scale}

    number, size = random.randrange(10**6), random.choice((0, 1, 16, 2**20, 2**31 - 1, -1))
    symbols = [f"S{n}" for n in range(random.choice((0, 1, 3, 2_000)))]
    kinds: tuple[Callable[[], Any], ...] = (
        logical,
        lambda: {"type": "fixed", "name": f"F{number}", "size": size},
        lambda: {"type": "enum", "name": f"E{number}", "symbols": symbols},
        lambda: {"type": "array", "items": inner()},
        lambda: {"type": "map", "values": inner()},
        lambda: [inner() for _ in range(number % 4)],
        record,
        record,
    )
    return random.choice(kinds)()


def _doubling(random: Random, _names: Sequence[str]) -> Any:
    """Return a small schema with 2^n leaves."""
    whole: Any = "int"
    for level in range(random.choice((3, 8, 16, 24, 40))):
        name = "int" if level == 0 else f"T{level - 1}"
        fields = [{"name": "a", "type": whole}, {"name": "b", "type": name}]
        whole = {"type": "record", "name": f"T{level}", "fields": fields}
    return whole


def _recursive(random: Random, names: Sequence[str]) -> Any:
    own: Any = random.choice(
        (
            ["null", "Usual"],
            {"type": "array", "items": "Usual"},
            "Usual",
            {"type": "map", "values": ["null", "Usual"]},
        )
    )
    schema = _usual(random, names)
    schema["fields"].append({"name": "next", "type": own})
    schema.pop("namespace")
    return schema


def _twice(random: Random, names: Sequence[str]) -> Any:
    schema = _usual(random, names)
    one = random.choice(schema["fields"] or [{"name": "a", "type": "int"}])
    name = random.choice((one["name"], one["name"].upper(), one["name"].title(), one["name"] + " "))
    schema["fields"].append({"name": name, "type": random.choice(_SIMPLE)})
    return schema


def _bombs(random: Random, names: Sequence[str]) -> Any:
    """Return a schema in which a few bytes represent a great many items."""
    of: Any = random.choice(
        (
            "null",
            {"type": "record", "name": "Nothing", "fields": []},
            {"type": "fixed", "name": "None0", "size": 0},
        )
    )
    for _ in range(random.choice((1, 2, 3, 30, 300))):
        of = {"type": "array", "items": of}
    schema = _usual(random, names)
    schema["fields"].append({"name": "bomb", "type": of})
    return schema


def _no_record(random: Random, names: Sequence[str]) -> Any:
    deep, any_type = "[" * random.choice((10, 2_000, 20_000)), json.dumps(_any_type(random, names))
    texts = (
        "",
        "null",
        '"string"',
        "{}",
        "[]",
        "12",
        "1e999",
        "\ufeff{}",
        deep,
        deep + "]" * len(deep),
        any_type,
        '{"type":' * 3_000 + '"int"' + "}" * 3_000,
        '{"type":"record","name":"a","fields":null}',
        '{"type":{"type":"int"}}',
    )
    return random.choice(texts)


def _default(random: Random, names: Sequence[str]) -> Any:
    schema = _usual(random, names)
    schema["fields"].append(
        {
            "name": "lacking",
            "type": _any_type(random, names),
            "aliases": ["value", 3],
            "default": random.choice((None, "x", 1e400, {}, [[]], -(2**70), "\ud800")),
        }
    )
    return schema


def _many(random: Random, names: Sequence[str]) -> Any:
    schema = _usual(random, names)
    schema["fields"] += [
        {"name": f"f{n}", "type": ["null", "string"], "default": None}
        for n in range(random.choice((50, 300)))
    ]
    return schema


_HOSTILE = (_doubling, _recursive, _twice, _bombs, _bombs, _no_record, _default, _many)


def _write(random: Random, schema: Any, named: dict[str, Any], out: bytearray, depth: int) -> None:
    """Write a value by Avro's rules, with some lies about lengths."""
    if len(out) > _MOST_BYTES or depth > 150:
        return
    if isinstance(schema, list):
        at = random.randrange(len(schema))
        out += _zigzag(at)
        _write(random, schema[at], named, out, depth + 1)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        _write_complex(random, schema, named, out, depth)
    elif schema in named:
        _write(random, named[schema], named, out, depth + 1)
    else:
        out += _simple(random, schema)


def _write_complex(random: Random, schema: Any, named: dict[str, Any], out: bytearray, depth: int) -> None:
    kind = schema["type"]
    if kind == "record":
        for one in schema["fields"]:
            _write(random, one["type"], named, out, depth + 1)
    elif kind == "enum":
        out += _zigzag(random.choice((0, len(schema["symbols"]) - 1, len(schema["symbols"]), -1)))
    elif kind == "fixed":
        out += random.randbytes(min(schema["size"], 100))
    elif kind in ("array", "map"):
        _write_items(random, schema, named, out, depth)
    else:
        _write(random, kind, named, out, depth + 1)


def _write_items(random: Random, schema: Any, named: dict[str, Any], out: bytearray, depth: int) -> None:
    of = schema.get("items", schema.get("values"))
    count = random.choice((0, 1, 2, 3)) if depth < 40 else 0
    if random.random() < 0.4:  # many items of no bytes, or as many as the bytes do not have
        claimed = random.choice((100, 10_000, 10**6, *_LENGTHS))
        out += _zigzag(claimed)
        if claimed < 0:
            out += _zigzag(random.choice(_LENGTHS))
    elif count:
        out += _zigzag(count)
    for _ in range(count):
        if schema["type"] == "map":
            out += _simple(random, "string")
        _write(random, of, named, out, depth + 1)
    out += b"\x00"


def _simple(random: Random, schema: Any) -> bytes:
    if schema in ("bytes", "string"):
        text = random.choice(_TEXTS)
        length = len(text) if random.random() < 0.97 else random.choice(_LENGTHS)
        return _zigzag(length) + text
    found: Mapping[str, tuple[bytes, ...]] = {
        "null": (b"",),
        "boolean": (b"\x00", b"\x01", b"\x01", b"\x02", b"\xff"),
        "float": (struct.pack("<f", 1.5), b"\x00\x00\xc0\x7f", random.randbytes(4)),
        "double": (struct.pack("<d", 12.5), struct.pack("<d", 12.5), random.randbytes(8)),
    }
    return random.choice(found.get(schema) or tuple(map(_zigzag, _WHOLE)))


def _zigzag(number: int) -> bytes:
    return varint(((number << 1) ^ (number >> 63)) & (2**64 - 1))


def varint(number: int) -> bytes:
    """Return a non-negative number in groups of seven bits."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def protobuf(random: Random, names: Sequence[str]) -> Made:
    """Return the text of a .proto file, or a descriptor in Base64, and a writer of its messages."""
    text = random.choice((_file, _file, _file, _file, _deep, _cyclic, _no_file, _descriptor))(random, names)
    if random.random() < 0.15:
        text = _mutated(random, text)
    numbers = len(names)

    def body(random: Random) -> bytes:
        return _indexes(random) + _spoiled(random, _message(random, numbers, 0))

    return text, body


def _file(random: Random, names: Sequence[str]) -> str:
    syntaxes = ('syntax = "proto3";', 'syntax = "proto3";', 'syntax = "proto2";', 'edition = "2023";', "")
    syntax = random.choice(syntaxes)
    imports = "".join(f'import "google/protobuf/{one}.proto";' for one in _IMPORTS)
    chosen = [name for name in names if random.random() < 0.95]
    fields = [_field(random, name, number, "proto2" in syntax) for number, name in enumerate(chosen, 1)]
    more = (
        f"map<string, {random.choice(('M', 'bytes', 'K'))}> more = {random.choice((77, 536870911))};",
        "M next = 15;",
        "oneof one { int32 first = 21; string second = 22; google.protobuf.Any third = 23; }",
    )
    fields += [one for one in more if random.random() < 0.2]
    body = " ".join((*fields, "enum K { ZERO = 0; SEVEN = 7; MINUS = -1; }"))
    other = f"message Other {{ message In {{ {fields[0] if fields else ''} }} }}"
    return f"{syntax} package of.all; {imports} message M {{ {body} }} {other}"


def _field(random: Random, name: str, number: int, is_old: bool) -> str:
    usual = "string" if "id" in name.lower() or "name" in name.lower() else "double"
    if "time" in name.lower():
        usual = random.choice(("int64", "google.protobuf.Timestamp", "string"))
    if random.random() < 0.25:
        usual = random.choice((*_SCALARS, *(f"google.protobuf.{one}" for one in _WELL_KNOWN), "K", "M"))
    label = random.choice(
        ("optional ", "optional ", "required ") if is_old else ("", "", "optional ", "repeated ")
    )
    default = ' [default = "x"]' if is_old and usual == "string" and random.random() < 0.3 else ""
    return f"{label}{usual} {name.replace('.', '_')} = {number}{default};"


def _deep(random: Random, names: Sequence[str]) -> str:
    depth = random.choice((5, 31, 60, 200))
    inside = " ".join(f"string {name.replace('.', '_')} = {number};" for number, name in enumerate(names, 1))
    opened = "".join(f"message M{n} {{ " for n in range(depth))
    return f'syntax = "proto3"; {opened}{inside}{" }" * depth}'


def _cyclic(random: Random, names: Sequence[str]) -> str:
    more = " ".join(f"string {name.replace('.', '_')} = {number + 2};" for number, name in enumerate(names))
    struct = 'syntax = "proto3"; import "google/protobuf/struct.proto";'
    old, own = more.replace("string", "optional string"), "repeated group Next = 1 { optional M next = 1; }"
    return random.choice(
        (
            f'syntax = "proto3"; message M {{ M next = 1; {more} }}',
            f'syntax = "proto3"; message M {{ repeated M next = 1; {more} }}',
            f'syntax = "proto3"; message M {{ map<string, M> next = 1; {more} }}',
            f"{struct} message M {{ google.protobuf.Value next = 1; {more} }}",
            f'syntax = "proto2"; message M {{ {own} {old} }}',
        )
    )


def _no_file(random: Random, names: Sequence[str]) -> str:  # noqa: ARG001
    return random.choice(
        (
            "",
            "message",
            'import "no/such.proto";',
            'syntax = "proto9";',
            "{" * 20_000,
            "\x00",
            "//",
            'syntax = "proto3";',
            'import "/etc/passwd";',
            'import "../../x.proto"; message M {}',
            'syntax = "proto3"; message M { string a = 1; string a = 2; }',
            'syntax = "proto3"; message M { string a = 0; }',
            "message " + "M" * 60_000 + " {}",
            'syntax = "proto3"; enum K { A = 1; }',
            '{"type":"record","name":"a","fields":[]}',
        )
    )


def _descriptor(random: Random, names: Sequence[str]) -> str:
    found = FileDescriptorProto(name="a.proto", syntax="proto3")
    message = found.message_type.add(name="M")
    for number, name in enumerate(names, 1):
        type_ = random.choice((9, 9, 1, 3, 8, 12))
        message.field.add(name=name.replace(".", "_"), number=number, type=type_, label=1)
    encoded = bytearray(found.SerializeToString())
    if random.random() < 0.3:
        encoded[random.randrange(len(encoded))] = random.randrange(256)
    return base64.b64encode(bytes(encoded)).decode()


def _indexes(random: Random) -> bytes:
    usual = (b"\x00",) * 6
    odd = (
        b"\x02\x00",
        b"\x02\x02",
        b"\x04\x02\x00",
        b"\x01\x01",
        b"\x03",
        b"\x01\x00",
        b"\xff" * 10,
        b"",
        b"\x80",
        varint(2**40),
        varint(2**63),
        _zigzag(-5),
        b"\x7e" + b"\x00" * 63,
        b"\x02\x7f",
        random.randbytes(3),
    )
    return random.choice((*usual, *odd))


def _message(random: Random, numbers: int, depth: int) -> bytes:
    found = bytearray()
    for number in random.sample(range(1, numbers + 1), numbers) if random.random() < 0.8 else ():
        found += _wire(random, number, depth)
    for _ in range(random.choice((0, 0, 1, 4))):
        found += _wire(random, random.choice((1, 2, 15, 21, 23, 77, 536_870_911)), depth)
    return bytes(found)


def _wire(random: Random, number: int, depth: int) -> bytes:
    kind = random.choice((0, 1, 2, 2, 2, 2, 5, random.randrange(8)))
    tag = varint(number << 3 | kind)
    if kind == 0:
        return tag + varint(random.choice((0, 1, 7, 2**31, 2**32, 2**63, 2**64 - 1, _AT_MS)))
    if kind == 1:
        return tag + random.choice(
            (struct.pack("<d", 12.5), struct.pack("<d", float("nan")), random.randbytes(8))
        )
    if kind == 5:
        return tag + random.randbytes(4)
    if kind != 2:
        return tag
    inside = random.choice(
        (b"x", b"user", b"", b"\x00", b"\xff", "🚚".encode(), b"12.5", random.randbytes(20))
    )
    if depth < 3 and random.random() < 0.2:
        inside = _message(random, 4, depth + 1)
    if depth == 0 and random.random() < 0.08:  # nested messages, as deep as parsers go and deeper
        for _ in range(random.choice((20, 60, 99, 101, 3_000))):
            inside = varint(number << 3 | 2) + varint(len(inside)) + inside
    length = len(inside) if random.random() < 0.97 else random.choice((0, 2**31, 2**40, len(inside) + 1))
    return tag + varint(length) + inside[:_MOST_BYTES]


def _spoiled(random: Random, body: bytes) -> bytes:
    """Return a body unchanged or, one time in five, with something cut off, changed or added."""
    if random.random() < 0.8:
        return body
    at = random.randint(0, len(body))
    return random.choice(
        (
            body[:at],
            body + b"\x00",
            body + body,
            body[:at] + random.randbytes(3) + body[at:],
            b"",
            body[:at] + bytes([random.randrange(256)]) + body[at + 1 :],
        )
    )


def _mutated(random: Random, text: str) -> str:
    """Return a text with a few characters lost, doubled or moved."""
    for _ in range(random.randint(1, 4)):
        at, length = random.randint(0, len(text)), random.choice((1, 1, 5, 40))
        piece = text[at : at + length]
        to = random.randint(0, len(text))
        text = random.choice(
            (
                text[:at] + text[at + length :],
                text[:to] + piece + text[to:],
                text[:at] + random.choice('{}[]":,\x00;1') + text[at:],
            )
        )
    return text
