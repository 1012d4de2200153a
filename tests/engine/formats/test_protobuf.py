"""Protobuf records judged by a contract: hostile records, unusual schemas, and each type of value."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from pyspark.sql import SparkSession

from lakehouse.engine.formats import protobuf
from lakehouse.engine.formats.protobuf import compiled
from lakehouse.engine.formats.protobuf_columns import Times, Wanted
from lakehouse.engine.formats.protobuf_reading import Reading
from lakehouse.engine.formats.protobuf_types import message_class
from lakehouse.engine.layers import bronze
from lakehouse.engine.records.validation import judge
from lakehouse.storage.kafka.schema_registry import Registered
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.streams.contract import Contract, Field, FieldType
from lakehouse.streams.definition import Source

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT_S = 1_767_225_600  # 2026-01-01
AT_US = AT_S * 1_000_000
FIRST = b"\x00"


def field(name: str, type_: FieldType, *, required: bool = False, scale: int | None = None) -> Field:
    return Field(name, name.replace(".", "_"), type_, required=required, scale=scale)


CONTRACT = Contract(
    (
        field("id", FieldType.STRING, required=True),
        field("count", FieldType.LONG),
        field("ratio", FieldType.DOUBLE),
        field("price", FieldType.DECIMAL, scale=2),
        field("exact", FieldType.DECIMAL),
        field("note", FieldType.STRING),
        field("flag", FieldType.BOOLEAN),
        field("payload", FieldType.JSON),
    ),
    event_time="at",
)
NAMES = tuple(one.column for one in CONTRACT.fields)


def judged(
    spark: SparkSession,
    schemas: Mapping[int, str],
    values: Iterable[bytes],
    contract: Contract = CONTRACT,
) -> list[tuple[dict[str, Any], list[tuple[str, str | None, str]]]]:
    """Return each record's values, without nulls, and the reasons against it."""
    source = Source("t", "t", contract, format="protobuf")
    rows = [(b"k", value, None, "t", 0, offset, NOW, 0, NOW, None) for offset, value in enumerate(values)]
    registered = {one: Registered("PROTOBUF", text) for one, text in schemas.items()}
    frame = protobuf.decoded(local_frame(spark, rows, bronze.SCHEMA), source, registered)
    found = judge(frame, source, None).orderBy("offset").collect()
    names = [one.column for one in contract.fields]
    return [
        (
            {name: row[name] for name in names if row[name] is not None},
            [(one.rule, one.column, one.message) for one in row.reasons],
        )
        for row in found
    ]


def of(schema: str, index: tuple[int, ...] = (0,)) -> Any:
    return message_class(compiled(schema), list(index))


def framed(message: Any, schema_id: int = 1, index: bytes = FIRST) -> bytes:
    body = message if isinstance(message, bytes) else message.SerializePartialToString()
    return b"\x00" + schema_id.to_bytes(4, "big") + index + body


def length_delimited(number: int, body: bytes) -> bytes:
    """Return a field that consists of its tag, its length and its bytes."""
    left, length = len(body), b""
    while True:
        left, seven = left >> 7, left & 0x7F
        length += bytes([seven | (0x80 if left else 0)])
        if not left:
            return bytes([number << 3 | 2]) + length + body


SIMPLE = """
syntax = "proto3";
message Other { string id = 1; }
message Outer { message Inner { string id = 1; int64 at = 2; map<string, int32> counts = 3; } }
"""


@pytest.mark.soak
def test_indexes_of_older_serializers_are_read_and_hostile_ones_name_no_message(spark: SparkSession) -> None:
    inner = of(SIMPLE, (1, 0))(id="i", at=AT_S * 1000)
    ms = inner.SerializeToString()
    named = (b"\x04\x02\x00", b"\x02\x01\x00")  # [1, 0] in zigzag, and as plain varints
    unnamed = (
        *(b"", b"\x01", b"\x01\x09", b"\x03", b"\x03\x01\x00\x00", b"\x04\x02\x02", b"\x06\x02\x00\x00"),
        *(b"\x04\x02", b"\x03\x01", b"\xff" * 70, b"\xfe\xff\xff\xff\x0f\x00", b"\x02\xfe\xff\xff\xff\x0f"),
        b"\x01" + b"\xff" * 9 + b"\x01",
    )
    other = (b"\x00", b"\x02\x00", b"\x01\x00")  # Other, in three forms; it has no time, so Kafka's is used
    values = [framed(ms, index=one) for one in (*named, *unnamed)]
    values += [framed(b"\x0a\x01o", index=one) for one in other]
    found = judged(spark, {1: SIMPLE}, values)

    assert found[: len(named)] == [({"id": "i"}, [])] * 2
    refusal = ("undecodable", None, "schema 1 does not contain the value's message type")
    assert [reasons for _, reasons in found[len(named) : -len(other)]] == [[refusal]] * len(unnamed)
    assert found[-len(other) :] == [({"id": "o"}, [])] * 3


TREE = """
syntax = "proto3";
message Record { string id = 1; int64 at = 2; Node payload = 3; Node outside = 4; }
message Node {
  Node child_node = 1; repeated Node nodes = 2; string some_text = 3; int64 number = 4;
  oneof either { string left = 5; bool right = 6; }
  map<bool, double> by_truth = 7; bytes data = 8; Wide wide = 9;
}
message Wide { FIELDS }
""".replace("FIELDS", " ".join(f"int64 field_{number} = {number};" for number in range(1, 2_001)))


def nested(depth: int, number: int = 1) -> bytes:
    body = b""
    for _ in range(depth):
        body = length_delimited(number, body)
    return body


@pytest.mark.soak
def test_work_and_memory_do_not_explode_with_depth_width_and_repetition(spark: SparkSession) -> None:
    first = of(TREE)(id="a", at=AT_S * 1000).SerializeToString()
    many = length_delimited(2, b"") * 250_000
    wide = length_delimited(9, b"") * 20
    values = [
        first + length_delimited(3, nested(98)),
        first + length_delimited(3, nested(100)),
        first + length_delimited(4, nested(2_000)),
        first + length_delimited(3, many),
        first + length_delimited(3, length_delimited(2, length_delimited(9, b"")) * 50_000),
        first + length_delimited(4, length_delimited(2, length_delimited(9, b"")) * 50_000),
        first + length_delimited(3, wide),
        first + b"\x53" * 90 + b"\x54" * 90,
        first + b"\x53" * 5_000,
        first + b"\xff\xff\xff\xff\x7f" * 3,
    ]
    found = judged(spark, {1: TREE}, [framed(value) for value in values])

    said = [(row.get("payload"), [(rule, column) for rule, column, _ in reasons]) for row, reasons in found]
    assert said == [
        ('{"childNode":' * 98 + "{}" + "}" * 98, []),
        (None, [("undecodable", None)]),
        (None, []),
        ('{"nodes":[' + ",".join(["{}"] * 250_000) + "]}", []),
        (None, [("undecodable", None)]),
        (None, []),
        ('{"wide":{}}', []),
        (None, []),
        (None, [("undecodable", None)]),
        (None, [("undecodable", None)]),
    ]
    assert [found[place][1][0][2] for place in (1, 4)] == [
        "the value is nested deeper than Protobuf's limit of 100 messages",
        "the value takes more than 268,435,456 bytes of memory",
    ]


VALUES = """
syntax = "proto2";
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Record {
  optional string id = 1;
  optional google.protobuf.Timestamp at = 2;
  oneof a_count { uint64 count = 3; google.protobuf.Timestamp count_at = 13; }
  optional double ratio = 4;
  optional string price = 5;
  optional string exact = 6;
  optional string note = 7;
  optional bool flag = 8;
  optional Payload payload = 9;
  optional Payload outside = 10;
  required string never_sent = 11;
  optional uint64 huge = 12 [default = 18446744073709551615];
}
message Payload {
  optional google.protobuf.Struct struct = 1;
  optional google.protobuf.Any any = 2;
  optional google.protobuf.Timestamp time = 3;
  optional google.protobuf.Duration span = 4;
  optional google.protobuf.FieldMask mask = 5;
  optional google.protobuf.StringValue text = 6;
  optional google.protobuf.BytesValue data = 7;
  optional double number = 8;
  optional fixed64 whole = 9;
  repeated Kind kinds = 10;
  map<int32, Payload> inner = 11;
  optional string plain = 12;
}
enum Kind { FIRST = 1; SECOND = 2; }
"""


def record(**values: Any) -> Any:
    return of(VALUES)(**({"id": "a", "at": {"seconds": AT_S}} | values))


def of_any(name: str, value: bytes = b"") -> dict[str, Any]:
    return {"any": {"type_url": f"type.googleapis.com/{name}", "value": value}}


def number_in_struct(number: float) -> dict[str, Any]:
    return {"struct": {"x": number}}


def test_what_a_field_cannot_hold_is_refused_by_its_own_rule(spark: SparkSession) -> None:
    cases: tuple[tuple[dict[str, Any], str, str, str], ...] = (
        (
            {"count": 2**63},
            "beyond_long",
            "count",
            "count must be from -2^63 to 2^63 - 1, not 9223372036854775808",
        ),
        (
            {"at": {"seconds": AT_S * 1000}},
            *("bad_timestamp", "event_time"),
            f"at must be from 2000-01-01 to 9998-12-31, not a Timestamp of {AT_S}000 s since the epoch",
        ),
        (
            {"at": {"seconds": AT_S, "nanos": -1}},
            *("bad_timestamp", "event_time", "at has a Timestamp whose nanoseconds are -1"),
        ),
        (
            {"payload": {"time": {"seconds": AT_S * 1000}}},
            *("bad_timestamp", "payload"),
            f"payload has a Timestamp of {AT_S}000 s, outside the years 1 to 9999",
        ),
        (
            {"payload": number_in_struct(float("nan"))},
            *("not_finite", "payload", "payload has a Value that is NaN or infinite"),
        ),
        (
            {"payload": {"inner": {1: number_in_struct(float("-inf"))}}},
            *("not_finite", "payload", "payload has a Value that is NaN or infinite"),
        ),
        (
            {"payload": of_any("some.Thing", b"x")},
            *("undecodable", "payload"),
            "payload has an Any of type 'some.Thing', which its schema does not define",
        ),
        (
            {"payload": of_any("Payload", b"\x0a\x09x")},
            *("undecodable", "payload", "payload has an Any whose bytes do not match its type"),
        ),
        (
            {"payload": {"span": {"seconds": 2**60}}},
            *("undecodable", "payload", f"payload has a Duration of {2**60} s and 0 ns, which is invalid"),
        ),
        (
            {"payload": {"mask": {"paths": ["aB"]}}},
            *("undecodable", "payload", "payload has a FieldMask with the path 'aB', which has no JSON name"),
        ),
        (
            {"price": "9" * 29 + ".999"},
            *("beyond_decimal", "price"),
            f"price must have at most 29 digits before the decimal point: {'9' * 29}.999",
        ),
        (
            {"price": "1" * 1_200},
            *("beyond_decimal", "price"),
            f"price must have at most 29 digits before the decimal point: {'1' * 80}…",
        ),
        (
            {"exact": "0." + "0" * 1_200 + "1"},
            *("beyond_decimal", "exact"),
            f"exact must have at most 29 digits before the decimal point and 9 after it: 0.{'0' * 78}…",
        ),
        ({"exact": "1e3"}, "wrong_type", "exact", 'exact must be a number, not a string: "1e3"'),
        ({"exact": "\0" + "12"}, "wrong_type", "exact", r'exact must be a number, not a string: "\u000012"'),
        ({"ratio": float("inf")}, "not_finite", "ratio", "ratio is beyond the range of a double: Infinity"),
    )
    found = judged(spark, {1: VALUES}, [framed(record(**values)) for values, *_ in cases])
    assert [reasons for _, reasons in found] == [[tuple(reason)] for _, *reason in cases]


def test_a_whole_double_is_a_whole_number(spark: SparkSession) -> None:
    contract = Contract(
        (
            field("count", FieldType.LONG),
            Field("key", "key", FieldType.STRING, required=False, accepts_numbers=True),
        ),
        event_time="at",
    )
    schema = 'syntax = "proto3"; message M { double count = 1; double key = 2; double at = 3; }'
    numbers = {270.0: 270, -12345678.0: -12345678, 9e15: 9 * 10**15, 270.5: None, 1e16: None}
    of_at = {"at": AT_S * 1e3}
    values = [of(schema)(count=one, key=one, **of_at) for one in numbers]
    found = judged(spark, {1: schema}, map(framed, values), contract)
    taken = [row if not reasons else [reason[:2] for reason in reasons] for row, reasons in found]
    wrong = [("wrong_type", "count"), ("wrong_type", "key")]
    assert taken == [wrong if one is None else {"count": one, "key": str(one)} for one in numbers.values()]


def test_bytes_that_are_no_text_refuse_their_own_field_alone(spark: SparkSession) -> None:
    good = record().SerializePartialToString()
    values = (
        good + b"\x3a\x01\xff",
        good + b"\x2a\x01\xff" + b"\x0a\x00",
        good + length_delimited(9, b"\x62\x01\xff"),
        good + length_delimited(9, length_delimited(1, length_delimited(1, b"\x0a\x01\xff"))),
        good + length_delimited(10, b"\x62\x01\xff") + b"\x5a\x01\xff",
    )
    strict = (
        VALUES.replace("proto2", "proto3")
        .replace("required ", "")
        .replace(" [default = 18446744073709551615]", "")
    )
    strict = strict.replace("FIRST = 1", "ZERO = 0; FIRST = 1")
    found = judged(spark, {1: VALUES, 2: strict}, [framed(value, one) for one in (1, 2) for value in values])
    not_utf8 = [("not_utf8", name, f"{name} is not UTF-8") for name in ("note", "price", "payload")]
    of_key = [("undecodable", None, "a map key in the value is not UTF-8")]
    expected = [
        [not_utf8[0]],
        [("empty_string", "id", "id is empty"), not_utf8[1]],
        [not_utf8[2]],
        of_key,
        [],
    ]
    assert [reasons for _, reasons in found] == expected * 2
    assert found[4][0] == {"id": "a"}


def test_what_is_outside_of_the_contract_refuses_nothing(spark: SparkSession) -> None:
    outside = (
        {"huge": 2**64 - 1},
        {"outside": {"any": {"type_url": "type.googleapis.com/some.Thing"}}},
        {"outside": number_in_struct(float("nan"))},
        {"outside": {"time": {"seconds": 2**62}}},
        {"outside": {"span": {"seconds": 2**62}}},
    )
    # Each is sent twice; the second time, a contract field is not proven, so the record is examined.
    values = [framed(record(**one, **more)) for one in outside for more in ({}, {"exact": "x"})]
    found = judged(spark, {1: VALUES}, values)
    assert found[::2] == [({"id": "a"}, [])] * len(outside)
    wrong = ("wrong_type", "exact", 'exact must be a number, not a string: "x"')
    assert [reasons for _, reasons in found[1::2]] == [[wrong]] * len(outside)


def test_values_become_the_contracts_types(spark: SparkSession) -> None:
    payload = {
        "struct": {"n": 3, "h": 0.5, "t": '\0"1"', "l": [True, None], "s": {}},
        "time": {"seconds": AT_S, "nanos": 120_000_000},
        "span": {"seconds": -1, "nanos": -500_000},
        "mask": {"paths": ["a_b.c", "d"]},
        "text": {"value": "t\0"},
        "data": {"value": b"\x00\xff"},
        "number": float("nan"),
        "whole": 2**64 - 1,
        "kinds": [2, 1],
        "inner": {7: {"plain": "\0" + "12"}},
    }
    whole = (
        '{"data":"AP8=","inner":{"7":{"plain":"\\u000012"}},"kinds":["SECOND","FIRST"],"mask":"aB.c,d",'
        '"number":"NaN","span":"-1.000500s","struct":{"h":0.5,"l":[true,null],"n":3,"s":{},"t":"\\u0000\\"1\\""},'
        '"text":"t\\u0000","time":"2026-01-01T00:00:00.120Z","whole":18446744073709551615}'
    )
    any_text = '{"@type":"type.googleapis.com/Payload","plain":"x"}'
    any_time = '{"@type":"type.googleapis.com/google.protobuf.Timestamp","value":"1970-01-01T00:00:05Z"}'
    cases: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"count": 2**63 - 1, "ratio": -0.5}, {"count": 2**63 - 1, "ratio": -0.5}),
        ({"count_at": {"seconds": 1}}, {}),
        (
            {"price": "1234567890123456789012345678.555"},
            {"price": Decimal("1234567890123456789012345678.56")},
        ),
        ({"price": "-" + "9" * 29 + ".001"}, {"price": Decimal("-" + "9" * 29)}),
        ({"price": "0." + "0" * 2_000 + "1"}, {"price": Decimal(0)}),
        ({"exact": "1.5" + "0" * 2_000}, {"exact": Decimal("1.5")}),
        ({"note": "\0" + "12"}, {"note": "\0" + "12"}),
        ({"note": '\0"'}, {"note": '\0"'}),
        ({"payload": payload}, {"payload": whole}),
        ({"payload": of_any("Payload", b"\x62\x01x")}, {"payload": f'{{"any":{any_text}}}'}),
        ({"payload": of_any("google.protobuf.Timestamp", b"\x08\x05")}, {"payload": f'{{"any":{any_time}}}'}),
        ({"payload": {"plain": "x", "kinds": []}}, {"payload": '{"plain":"x"}'}),
    )
    found = judged(spark, {1: VALUES}, [framed(record(**values)) for values, _ in cases])
    assert found == [({"id": "a"} | expected, []) for _, expected in cases]


TYPES = """
syntax = "proto2";
package of.types;
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Record {
  optional string id = 1 [default = "unsaid"];
  optional bytes note = 2;
  optional Level price = 3 [default = HIGH];
  optional int64 at = 4 [default = 5];
  optional group Meta = 5 {
    optional Level level = 1;
    optional google.protobuf.Timestamp seen = 2;
    optional string unread = 3;
    optional Meta meta = 4;
  }
  map<string, google.protobuf.Value> labels = 6;
  optional google.protobuf.Struct facts = 7;
  optional google.protobuf.BytesValue payload = 8;
  enum Level { LOW = 3; HIGH = 7; }
  optional int32 service_count = 9 [json_name = "count"];
}
"""
NESTED = Contract(
    (
        field("id", FieldType.STRING, required=True),
        field("note", FieldType.STRING),
        field("price", FieldType.STRING),
        field("meta.level", FieldType.STRING),
        field("meta.seen", FieldType.LONG),
        field("labels.env", FieldType.STRING),
        field("labels.any", FieldType.JSON),
        field("facts.x.y", FieldType.DOUBLE, required=True),
        field("payload", FieldType.JSON),
        field("count", FieldType.LONG),
    ),
    event_time="at",
)


def test_fields_are_found_in_groups_maps_and_structs_and_defaults_are_not_values(spark: SparkSession) -> None:
    def of_types(**values: Any) -> bytes:
        return framed(of(TYPES)(**({"id": "a", "facts": {"x": {"y": 1.5}}} | values)))

    values = (
        of_types(service_count=0),
        of_types(price=3, meta={"level": 7, "seen": {"seconds": AT_S, "nanos": 1_999}, "unread": "x"}),
        of_types(
            labels={"env": {"string_value": "\0"}, "any": {"list_value": {"values": []}}},
            payload={"value": b"\x00\xff"},
        ),
        of_types(note=b"text", labels={"env": {"number_value": 1}}),
        of_types(facts={"x": 1}),
        of_types(facts={"x": {"y": float("nan")}}),
        framed(b""),
        of_types(meta={"seen": {"seconds": 2**62}}),
    )
    found = judged(spark, {1: TYPES}, values, NESTED)
    least = {"id": "a", "facts_x_y": 1.5}
    assert [row for row, _ in found[:3]] == [
        least | {"count": 0},
        least | {"price": "LOW", "meta_level": "HIGH", "meta_seen": AT_US + 1},
        least | {"labels_env": "\0", "labels_any": "[]", "payload": "AP8="},
    ]
    assert [reasons for _, reasons in found] == [
        *([], [], []),
        [
            ("wrong_type", "note", "note must be a string, not bytes"),
            ("wrong_type", "labels_env", "labels.env must be a string, not a number: 1"),
        ],
        [("wrong_type", "facts_x_y", "facts.x must be an object, not a number: 1")],
        [("not_finite", "facts_x_y", "facts.x.y has a Value that is NaN or infinite")],
        [
            ("missing_field", "id", "id is missing"),
            ("missing_field", "facts_x_y", "facts.x.y is missing"),
        ],
        [("beyond_long", "meta_seen", f"meta.seen must be from -2^63 to 2^63 - 1, not {2**62}000000")],
    ]


def in_base64(schema: str) -> str:
    """Return the descriptor of a schema's own file as Confluent's serializers register it."""
    own = FileDescriptorSet.FromString(compiled(schema)).file[-1]
    return base64.b64encode(own.SerializeToString()).decode()


def test_a_schema_that_cannot_be_used_is_a_reason_without_anything_of_this_machine(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protobuf, "_MOST_CPU_S", 1)
    slow = ", ".join(map(str, range(1, 240_000, 2)))  # protoc compares every pair
    descriptor = FileDescriptorProto(name="/etc/hosts", dependency=["/etc/passwd"])
    descriptor.message_type.add(name="M")
    broken = FileDescriptorProto(name="schema.proto")
    broken.message_type.add(name="M").field.add(name="a", number=1, type=11, type_name=".Nowhere", label=1)
    texts = {
        1: 'import "/etc/passwd";\nmessage M { optional string id = 1; }',
        2: 'syntax = "proto3";\nimport "../../../etc/passwd";',
        3: 'syntax = "proto3";\nimport "google/protobuf/nowhere.proto";',
        4: 'import "google/protobuf/any.proto";\nmessage M { optional string id = 0; }',
        5: 'syntax = "proto3";\n' + "message M {" * 300,
        6: f'syntax = "proto3";\nmessage M {{ reserved {slow}; }}',
        7: "x" * 1_048_577,
        8: "not a schema",
        9: base64.b64encode(descriptor.SerializeToString()).decode(),
        10: base64.b64encode(broken.SerializeToString()).decode(),
    }
    found = judged(spark, texts, [framed(b"\x0a\x01a", one) for one in texts])
    rules = {(len(reasons), rule, column) for _, reasons in found for rule, column, _ in reasons}
    assert rules == {(1, "undecodable", None)}
    parts = 'Backslashes, consecutive slashes, ".", or ".."'
    too_deep = "Reached maximum recursion limit for nested messages."
    unresolved = "Couldn't build proto file into descriptor pool: couldn't resolve name '.Nowhere'"
    assert [reasons[0][2] for _, reasons in found] == [
        "schema 1 cannot be compiled: /etc/passwd: File not found.",
        f"schema 2 cannot be compiled: ../../../etc/passwd: {parts} are not allowed in the virtual path",
        "schema 3 cannot be compiled: google/protobuf/nowhere.proto: File not found.",
        "schema 4 cannot be compiled: schema.proto:2:34: Field numbers must be positive integers.",
        f"schema 5 cannot be compiled: schema.proto:2:342: {too_deep}",
        "schema 6 cannot be compiled: it takes more than 1 s of CPU time",
        "schema 7 cannot be compiled: it has 1,048,577 bytes; at most 1,048,576 are allowed",
        'schema 8 cannot be compiled: schema.proto:1:1: Expected top-level statement (e.g. "message").',
        "schema 9 cannot be compiled: it imports '/etc/passwd', which it does not contain",
        f"schema 10 cannot be compiled: {unresolved}",
    ]


def test_a_schema_is_compiled_once_whatever_comes_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler.py"
    compiler.write_text(
        "import pathlib, signal, sys, os\n"
        f"noted = pathlib.Path({str(tmp_path / 'noted')!r})\n"
        "text = sys.stdin.read()\n"
        "noted.open('a').write(text + ' ')\n"
        "if text == 'crash':\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "if text == 'hang':\n    signal.pause()\n"
        "1 / 0\n"
    )
    monkeypatch.setattr(protobuf, "_COMPILER", str(compiler))
    monkeypatch.setattr(protobuf, "_COMPILED_IN_S", 2)
    texts = ("crash", "hang", "raise")
    twice = [protobuf._files_of(Registered("PROTOBUF", text)) for text in texts * 2]
    assert (
        twice
        == [
            "cannot be compiled: the compiler was killed by SIGSEGV",
            "cannot be compiled: it takes longer than 2 s",
            "cannot be compiled: the compiler failed: ZeroDivisionError",
        ]
        * 2
    )
    assert (tmp_path / "noted").read_text().split() == list(texts)


def test_a_descriptor_in_base64_is_a_schema_as_its_text_is(spark: SparkSession) -> None:
    values = [framed(record(count=5, payload={"span": {"seconds": 1}}), one) for one in (1, 2)]
    found = judged(spark, {1: VALUES, 2: in_base64(VALUES)}, values)
    assert found == [({"id": "a", "count": 5, "payload": '{"span":"1s"}'}, [])] * 2


def test_fields_may_be_called_as_the_methods_of_messages_are(spark: SparkSession) -> None:
    odd = """
    syntax = "proto3";
    message Record { string id = 1; int64 at = 2; optional int64 HasField = 3; string ByteSize = 4; }
    """
    contract = Contract(
        (field("HasField", FieldType.LONG), field("ByteSize", FieldType.STRING)), event_time="at"
    )
    value = of(odd)(id="a", at=AT_S * 1000).SerializeToString() + b"\x18\x05" + b"\x22\x01y"
    assert judged(spark, {1: odd}, [framed(value)], contract) == [({"HasField": 5, "ByteSize": "y"}, [])]


def test_what_nobody_foresaw_is_a_reason_against_each_record() -> None:
    wanted = (Wanted("ratio", ("ratio",), "double", required=False, scale=None),)
    times = Times(("at",), 1_000, 0, AT_US * 2)
    broken = Reading(wanted, times, {1: compiled(VALUES), 2: b"\xff"}, cast("Any", object()))
    values = [framed(record(ratio=1), one) for one in (1, 2, 1)]
    found = broken.read(pa.array(values, pa.binary())).to_pylist()
    assert [(one["proven"], one["refused"]) for one in found] == [
        (False, "the value cannot be read with schema 1: TypeError"),
        (False, "schema 2 cannot be used: DecodeError"),
        (False, "the value cannot be read with schema 1: TypeError"),
    ]
