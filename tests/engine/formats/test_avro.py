"""Avro records with unusual, large or hostile schemas: each becomes a row or a letter."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lakehouse.engine.formats import avro
from lakehouse.engine.formats.contracts import schema_of_contract
from lakehouse.engine.formats.encoding import encoder
from lakehouse.engine.layers import bronze
from lakehouse.engine.records.validation import judge
from lakehouse.storage.kafka.schema_registry import Registered
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.streams.contract import Contract, Field, FieldType
from lakehouse.streams.definition import Source
from tests.support import pipeline

AT = 1_767_225_600_000  # 2026-01-01, in milliseconds
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_US = 1_767_268_800_000_000
TYPES = {type_.value: Field(type_.value, type_.value, type_, required=False) for type_ in FieldType}
EVERY_TYPE = Source("t", "t", Contract(tuple(TYPES.values()), event_time="at"), format="avro")
NAMED = Source(
    "t",
    "t",
    Contract(
        (Field("id", "id", FieldType.STRING), Field("meta.n", "n", FieldType.LONG, required=False)), "at"
    ),
    format="avro",
)
WITH_ANY = Source(
    "t",
    "t",
    Contract(
        (Field("id", "id", FieldType.STRING), Field("any", "any", FieldType.JSON, required=False)), "at"
    ),
    format="avro",
)


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": type_} for one, type_ in fields]}


def encoded(schema: Any, value: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return written.getvalue()


def long(number: int) -> bytes:
    """Return a number in Avro's encoding."""
    return encoded("long", number)


def judged(
    spark: SparkSession, source: Source, cases: Sequence[tuple[Any, bytes]]
) -> list[tuple[dict[str, Any], list[tuple[str, str | None, str]]]]:
    """Return each record's columns and reasons. A schema is its text, or an object to write as JSON."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one, _ in cases]
    schemas = {number: Registered("AVRO", text) for number, text in enumerate(texts)}
    rows = [
        (b"k", b"\x00" + number.to_bytes(4, "big") + value, None, "t", 0, number, NOW, 0, NOW, None)
        for number, (_, value) in enumerate(cases)
    ]
    frame = local_frame(spark, rows, bronze.SCHEMA)
    found = judge(avro.decoded(frame, source, schemas), source, None)
    got = pipeline.in_micros(found).orderBy("offset").collect()
    return [(row.asDict(), [tuple(one) for one in row["reasons"]]) for row in got]


def logical(type_: str, of: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": of, **more}


FIXED = {"type": "fixed", "name": "F", "size": 2}
MILLIS = 1_767_225_600_123
LATE = "2026-01-01T00:00:00.123000"
# For each type: a value, and its result as a string, a long, a double, a decimal, a boolean and JSON.
EACH = [
    ("string", encoded("string", "é"), ("é", None, None, None, None, "é")),
    ("boolean", b"\x01", (None, None, None, None, True, "true")),
    ("int", long(-7), (None, -7, -7.0, Decimal(-7), None, "-7")),
    ("long", long(2**62), (None, 2**62, 2.0**62, Decimal(2**62), None, "4611686018427387904")),
    ("float", encoded("float", 0.5), (None, None, 0.5, Decimal("0.5"), None, "0.5")),
    ("double", encoded("double", 0.1), (None, None, 0.1, Decimal("0.1"), None, "0.1")),
    ("float", encoded("float", 270.0), (None, 270, 270.0, Decimal(270), None, "270")),
    (
        "double",
        encoded("double", -12345678.0),
        (None, -12345678, -12345678.0, Decimal(-12345678), None, "-1.2345678E7"),
    ),
    ("double", encoded("double", 1e16), (None, None, 1e16, Decimal(10**16), None, "1.0E16")),
    ("bytes", encoded("bytes", b"\x00\xffa"), (None, None, None, None, None, "AP9h")),
    (FIXED, b"ab", (None, None, None, None, None, "YWI=")),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, long(1), ("B", None, None, None, None, "B")),
    (logical("int", "date"), long(20454), ("2026-01-01", 20454, 20454.0, Decimal(20454), None, "2026-01-01")),
    (logical("int", "time-millis"), long(5), (None, 5, 5.0, Decimal(5), None, "5")),
    (logical("long", "time-micros"), long(6), (None, 6, 6.0, Decimal(6), None, "6")),
    (
        logical("long", "timestamp-millis"),
        long(MILLIS),
        (f"{LATE}Z", MILLIS, float(MILLIS), Decimal(MILLIS), None, f"{LATE}Z"),
    ),
    (
        logical("long", "timestamp-micros"),
        long(MILLIS * 1000),
        (f"{LATE}Z", MILLIS * 1000, MILLIS * 1e3, Decimal(MILLIS * 1000), None, f"{LATE}Z"),
    ),
    (
        logical("long", "timestamp-nanos"),
        long(MILLIS * 10**6),
        (None, MILLIS * 10**6, MILLIS * 1e6, Decimal(MILLIS * 10**6), None, str(MILLIS * 10**6)),
    ),
    (
        logical("long", "local-timestamp-millis"),
        long(MILLIS),
        (LATE, MILLIS, float(MILLIS), Decimal(MILLIS), None, LATE),
    ),
    (
        logical("long", "local-timestamp-micros"),
        long(MILLIS * 1000),
        (LATE, MILLIS * 1000, MILLIS * 1e3, Decimal(MILLIS * 1000), None, LATE),
    ),
    (logical("string", "uuid"), encoded("string", "u"), ("u", None, None, None, None, "u")),
    (
        logical("fixed", "duration", name="D", size=12),
        bytes(12),
        (None, None, None, None, None, "AAAAAAAAAAAAAAAA"),
    ),
    (
        logical("bytes", "decimal", precision=4, scale=2),
        encoded("bytes", b"\x04\xd2"),
        (None, None, 12.34, Decimal("12.34"), None, "12.34"),
    ),
    (
        logical("fixed", "decimal", name="C", size=2, precision=4, scale=1),
        b"\xff\xfe",
        (None, None, -0.2, Decimal("-0.2"), None, "-0.2"),
    ),
    # Kafka Connect's connectors write more digits than Spark's decimals have.
    (
        logical("bytes", "decimal", precision=64, scale=3),
        encoded("bytes", b"\x01"),
        (None, None, 0.001, Decimal("0.001"), None, "0.001"),
    ),
    (
        logical("bytes", "decimal", precision=30, scale=9),
        encoded("bytes", (270 * 10**9).to_bytes(5, "big")),
        (None, 270, 270.0, Decimal(270), None, "270"),
    ),
    (
        logical("bytes", "decimal", precision=38, scale=18),
        encoded("bytes", b"\x00"),
        (None, 0, 0.0, Decimal(0), None, "0.0"),
    ),
    ("null", b"", (None, None, None, None, None, None)),
]


@pytest.mark.soak
def test_each_type_is_taken_by_each_type_of_a_contract_that_holds_it(spark: SparkSession) -> None:
    cases = []
    for type_, value, _ in EACH:
        again = type_["name"] if isinstance(type_, dict) and "name" in type_ else type_
        fields = [(name, type_ if name == "string" else again) for name in TYPES]
        cases.append((record(*fields, ("at", "long"), name="Of"), value * len(TYPES) + long(AT)))
    for (type_, _, values), (row, reasons) in zip(EACH, judged(spark, EVERY_TYPE, cases), strict=True):
        wrong = [("wrong_type", name) for name, one in zip(TYPES, values, strict=True) if one is None]
        refused = [one[:2] for one in reasons]
        taken = tuple(None if ("wrong_type", name) in refused else row[name] for name in TYPES)
        assert (type_, taken, refused) == (type_, values, [] if type_ == "null" else wrong)


def test_a_text_that_may_be_a_number_has_the_digits_of_a_whole_double(spark: SparkSession) -> None:
    keyed = Contract((Field("id", "id", FieldType.STRING, accepts_numbers=True),), "at")
    source = Source("t", "t", keyed, format="avro")
    numbers = {270.0: "270", 12345678.0: "12345678", -0.0: "0", 270.5: None, 1e16: None}
    values = [encoded("double", number) + long(AT) for number in numbers]
    schema = record(("id", "double"), ("at", "long"))

    found = judged(spark, source, [(schema, value) for value in values])

    taken = [row["id"] if not reasons else reasons[0][:2] for row, reasons in found]
    assert taken == [text or ("wrong_type", "id") for text in numbers.values()]


def grown(levels: int, leaf: Any, *, width: int = 2) -> dict[str, Any]:
    """Return nested records: width^levels leaves in a short text."""
    found = record(("f0", leaf), name="G0")
    for level in range(1, levels + 1):
        fields: list[tuple[str, Any]] = [("f0", found)]
        fields += [(f"f{one}", f"G{level - 1}") for one in range(1, width)]
        found = record(*fields, name=f"G{level}")
    return found


def of_id(*fields: tuple[str, Any]) -> dict[str, Any]:
    return record(("id", "string"), *fields, ("at", "long"))


ID, TIME = encoded("string", "a"), long(AT)
LINKED = record(("next", ["null", "L"]), name="L")
SPARKS = {"type": "int", "spark.sql.catalyst.type": "no such type"}
SURROGATE = json.dumps(record(("id", "string"), ("\udc00", "int"), ("at", "long"), name="\ud800"))
ROWS = [
    # Names of fields and types that differ only in case, beside the contract's fields and within them.
    (
        of_id(("ID", "int"), ("Meta", "long"), ("meta", record(("N", "string"), ("n", "long"), name="M"))),
        ID + long(1) + long(2) + encoded("string", "no") + long(7) + TIME,
        7,
    ),
    (
        of_id(("u", ["null", record(("a", "int"), name="X"), record(("A", "int"), name="x")])),
        ID + b"\x04\x02" + TIME,
        None,
    ),
    (of_id(("meta", ["null", record(("n", ["long", "null"]), name="M")])), ID + b"\x02\x00\x0e" + TIME, 7),
    (of_id(("meta", ["null", record(("n", ["int", "null"]), name="M")])), ID + b"\x00" + TIME, None),
    # Fields that the contract does not use are ignored, whatever their size and values.
    (of_id(("g", ["null", grown(30, "int")])), ID + b"\x00" + TIME, None),
    (of_id(("g", grown(30, "null", width=50))), ID + TIME, None),
    (
        of_id(("u", "string"), ("t", logical("long", "timestamp-millis"))),
        ID + b"\x02\xff" + long(2**63 - 1) + TIME,
        None,
    ),
    (of_id(("d", logical("bytes", "decimal", precision=10**9, scale=10**8))), ID + b"\x02\x01" + TIME, None),
    (of_id(("e", {"type": "enum", "name": "E", "symbols": ["a", "no name"]})), ID + b"\x02" + TIME, None),
    (of_id(("s", SPARKS)), ID + b"\x02" + TIME, None),
    (SURROGATE, ID + b"\x02" + TIME, None),
    (
        of_id(("r", {"type": "error", "name": "M", "fields": []}), ("m", {"type": "map", "values": "null"})),
        ID + b"\x04\x02a\x02b\x00" + TIME,
        None,
    ),
]


def test_what_a_contract_has_no_use_for_refuses_no_record(spark: SparkSession) -> None:
    found = judged(spark, NAMED, [(schema, value) for schema, value, _ in ROWS])
    assert [(row["id"], row["n"], row["event_time"], reasons) for row, reasons in found] == [
        ("a", expected, AT * 1000, []) for _, _, expected in ROWS
    ]


NO_BYTES = "has an array whose items take no bytes, so a few bytes could encode any number of items"
MANY = "has {} types in the contract's fields, counting each use of a name; at most 10,000 are allowed"
TOO_DEEP = "is nested too deeply: at most 32 levels of records, arrays and maps are allowed"


def nested(levels: int) -> dict[str, Any]:
    """Return nested records that refer to each other by name, so the text itself is flat."""
    fields: list[tuple[str, Any]] = [("f0", record(("n", "int"), name="N0"))]
    fields += [(f"f{one}", record(("n", f"N{one - 1}"), name=f"N{one}")) for one in range(1, levels)]
    return of_id(*fields)


SCHEMAS = [
    (of_id(("l", LINKED)), "has a recursive type, L, which is not supported"),
    (
        of_id(("any", grown(13, "int"))),
        MANY.format("24,578"),
    ),
    (
        of_id(("any", grown(30, "null", width=1000))),
        MANY.format("more than 1,000,000,000,000"),
    ),
    (of_id(("x", {"type": "array", "items": "null"})), NO_BYTES),
    (of_id(("any", {"type": "array", "items": {"type": "array", "items": "null"}})), NO_BYTES),
    (of_id(("x", {"type": "array", "items": record(name="E")})), NO_BYTES),
    (of_id(("x", {"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}})), NO_BYTES),
    (of_id(("x", {"type": "array", "items": grown(3, "null")})), NO_BYTES),
    (nested(31), None),
    (nested(32), TOO_DEEP),
    ('{"type":' * 100_000 + '"int"' + "}" * 100_000, TOO_DEEP),
    ("[" * 200_000, TOO_DEEP),
    (json.dumps(of_id()) + " " * 1_000_000, "has 1,000,109 characters; at most 1,000,000 are allowed"),
    ("{", "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    (of_id(("x", "Later")), "refers to an undefined type, Later"),
    (of_id(("x", {"type": "fixed", "name": "Z", "size": -1})), "has a fixed type, Z, without a size"),
    (of_id(("x", 5)), "has an invalid type: 5"),
    (of_id(("x", "int"), ("x", "int")), "has a record, R, with duplicate or missing field names"),
    (of_id(("x", record(name="R"))), "has two types named R"),
    (
        of_id(("any", {"type": "fixed", "name": "Z", "size": 2**31 - 1})),
        "has a fixed type of 2,147,483,647 bytes in the contract's fields; at most 1,000,000 are allowed",
    ),
    ('"string"', "is not a record schema"),
    # Spark's own reason: the Avro library checks the symbols of an enum that the contract uses.
    (
        of_id(("any", {"type": "enum", "name": "E", "symbols": ["no name"]})),
        "cannot be read by Spark: org.apache.avro.SchemaParseException: Illegal character in: no name",
    ),
]


def test_a_schema_that_cannot_be_used_is_a_reason_against_its_records(spark: SparkSession) -> None:
    found = judged(spark, WITH_ANY, [(schema, b"") for schema, _ in SCHEMAS])
    said = "the value does not match schema {}, or is truncated"
    assert [reasons for _, reasons in found] == [
        [("undecodable", None, f"schema {number} {why}" if why else said.format(number))]
        for number, (_, why) in enumerate(SCHEMAS)
    ]


LIST = {"type": "array", "items": "string"}
MOST = long(2**31 - 10)
VALUES = [
    (of_id(("any", "string")), ID + MOST + TIME),
    (of_id(("x", "string")), ID + MOST + TIME),
    (of_id(("any", "bytes")), ID + MOST + TIME),
    (of_id(("any", LIST)), ID + long(2**31 - 10) + TIME),
    (of_id(("any", LIST)), ID + long(-(2**62)) + long(1) + TIME),
    (of_id(("any", LIST)), ID + long(-1) + long(2**40) + b"\x02" + TIME),
    (of_id(("x", LIST)), ID + long(2**62) + TIME),
    (of_id(("x", LIST)), ID + long(-1) + long(2**40) + TIME),
    (of_id(("x", LIST)), ID + (long(-1) + long(-20)) * 3 + TIME),
    (of_id(("any", {"type": "map", "values": "int"})), ID + long(2**40) + TIME),
    (of_id(("any", {"type": "enum", "name": "E", "symbols": ["A"]})), ID + long(7) + TIME),
    (of_id(("any", ["null", "int"])), ID + long(7) + TIME),
    (of_id(("x", ["null", "int"])), ID + long(-7) + TIME),
    (of_id(("x", {"type": "fixed", "name": "Z", "size": 2**31 - 1})), ID + TIME),
    (of_id(("any", {"type": "fixed", "name": "Z", "size": 10**6})), ID + TIME),
    (of_id(("any", logical("bytes", "decimal", precision=4))), ID + encoded("bytes", b"\x7f" * 1000) + TIME),
]


def test_a_value_that_lies_about_its_length_is_a_letter(spark: SparkSession) -> None:
    found = judged(spark, WITH_ANY, VALUES)
    assert [(number, [one[:2] for one in reasons]) for number, (_, reasons) in enumerate(found)] == [
        (number, [("undecodable", None)]) for number in range(len(VALUES))
    ]


BARE = Source("t", "t", Contract((Field("id", "id", FieldType.STRING),), "at"), format="avro")
TIMES: list[tuple[Any, bytes, int | str]] = [
    ("long", TIME, AT * 1000),
    (["null", "long"], b"\x00", NOW_US),
    (logical("long", "timestamp-millis"), TIME, AT * 1000),
    (logical("long", "timestamp-micros"), long(AT * 1000 + 5), AT * 1000 + 5),
    (logical("long", "timestamp-nanos"), long(AT * 10**6 + 5_999), AT * 1000 + 5),
    ("string", encoded("string", "2026-01-01T00:00:00Z"), AT * 1000),
    (logical("long", "timestamp-millis"), long(2**63 - 1), "bad_timestamp"),
    (logical("long", "timestamp-nanos"), long(17), "bad_timestamp"),
    # As a number in the contract's unit, it would be in the year 2001.
    (logical("long", "timestamp-micros"), long(10**12), "bad_timestamp"),
    (logical("long", "local-timestamp-millis"), TIME, "bad_timestamp"),
    (logical("long", "time-micros"), long(10**12), "bad_timestamp"),
    (logical("int", "date"), long(20454), "bad_timestamp"),
    ("bytes", encoded("bytes", b"2026"), "wrong_type"),
    ("double", encoded("double", float(AT)), AT * 1000),
    ("double", encoded("double", 0.5), "wrong_type"),
    ("double", bytes(8), "bad_timestamp"),
]


def test_an_event_time_has_the_unit_of_its_own_type(spark: SparkSession) -> None:
    cases = [(record(("id", "string"), ("at", type_)), ID + value) for type_, value, _ in TIMES]
    found = judged(spark, BARE, cases)
    assert [row["event_time"] if not reasons else reasons[0][0] for row, reasons in found] == [
        expected for _, _, expected in TIMES
    ]


def test_a_time_that_is_a_field_too_is_its_number_there(spark: SparkSession) -> None:
    contract = Contract((Field("id", "id", FieldType.STRING), Field("at", "at", FieldType.LONG)), "at")
    micros = record(("id", "string"), ("at", logical("long", "timestamp-micros")))
    source = Source("t", "t", contract, format="avro")
    found = judged(spark, source, [(micros, one + long(AT * 1000)) for one in (ID, b"\x00")])
    assert [(row["at"], row["event_time"]) for row, _ in found] == [(AT * 1000, AT * 1000)] * 2
    assert [[one[:2] for one in reasons] for _, reasons in found] == [[], [("empty_string", "id")]]


def test_a_payload_has_the_names_of_its_schema(spark: SparkSession) -> None:
    inner = record(
        ("a", "int"),
        ("A", ["string", "long"]),
        ("b-c", {"type": "map", "values": record(("x", "null"), ("X", "bytes"), name="V")}),
        ("t", {"type": "array", "items": logical("long", "timestamp-millis")}),
        ("old", logical("int", "date")),
        name="P",
    )
    value = b"\x02\x02\x04" + b"\x02\x02k\x02\xff\x00" + b"\x02" + TIME + b"\x00" + long(-200_000)
    ((row, reasons),) = judged(spark, WITH_ANY, [(of_id(("any", inner)), ID + value + TIME)])
    assert (json.loads(row["any"]), reasons) == (
        {
            "a": 1,
            "A": {"member0": None, "member1": 2},
            "b-c": {"k": {"x": None, "X": "/w=="}},
            "t": ["2026-01-01T00:00:00.000000Z"],
            "old": "1422-06-03",
        },
        [],
    )


def test_a_decimal_longer_than_its_schema_says_is_not_cut(spark: SparkSession) -> None:
    money = Source("t", "t", Contract((Field("m", "m", FieldType.DECIMAL),), "at"), format="avro")
    few = record(("m", logical("bytes", "decimal", precision=4, scale=2)), ("at", "long"))
    value = encoded("bytes", (2**64 + 5).to_bytes(9, "big")) + TIME
    ((row, reasons),) = judged(spark, money, [(few, value)])
    assert (row["m"], reasons) == (Decimal("184467440737095516.21"), [])


def test_a_value_whose_items_could_fill_the_heap_is_a_letter(spark: SparkSession) -> None:
    """A byte may encode 30 nested records, and JSON repeats the name of each."""
    item = record(("x" * 1000, "int"), name="I0")
    for level in range(1, 29):
        item = record(("x" * 1000, item), name=f"I{level}")
    large = of_id(("any", {"type": "array", "items": item}))
    values = (ID + long(count) + b"\x02" * count + b"\x00" + TIME for count in (100, 10_000))
    (_, none), (_, reasons) = judged(spark, WITH_ANY, [(large, value) for value in values])
    said = "the value could have too many items: with schema 1, at most 1,135 bytes are allowed"
    assert (none, reasons) == ([], [("undecodable", None, said)])


def test_a_property_of_java_neither_makes_an_object_nor_refuses_a_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    writes = {"type": "string", "java-class": "java.io.FileWriter"}
    schema = record(("id", writes), ("at", "long"))
    ((row, reasons),) = judged(spark, BARE, [(schema, encoded("string", str(made)) + TIME)])
    assert (row["id"], reasons, made.exists()) == (str(made), [], False)


def test_an_error_that_is_not_about_the_schema_is_raised(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro, "has_ended", lambda _spark: True)
    symbols = {"type": "enum", "name": "E", "symbols": ["no name either"]}
    with pytest.raises(Py4JError, match="Illegal character"):
        judged(spark, WITH_ANY, [(of_id(("any", symbols)), b"")])


def test_a_sample_that_is_nested_too_deep_is_sent_as_it_is() -> None:
    deep = b"[" * 100_000
    assert encoder(BARE, 7, schema_of_contract(BARE, "avro"))(deep) == b"\x00\x00\x00\x00\x07" + deep


def test_a_sample_with_fractions_of_zeros_is_encoded_as_its_whole_numbers() -> None:
    source = Source("t", "t", Contract((Field("n", "n", FieldType.LONG),), "at"), format="avro")
    encode = encoder(source, 7, schema_of_contract(source, "avro"))

    assert encode(b'{"n":270.0,"at":%d.00}' % AT) == encode(b'{"n":270,"at":%d}' % AT)
    for other in (b"270.5", b"2.7e2", b"2.7e3"):
        value = b'{"n":%b,"at":%d}' % (other, AT)
        assert encode(value) == b"\x00\x00\x00\x00\x07" + value
