"""Decimals, payloads of any JSON type and tombstones: what a record's text becomes, case by case.

Each table of cases is judged in one frame.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.streams.definition import Contract, Field, FieldType
from lakehouse.streams.messages import json_text
from tests.support.judged import judged

MONEY = Contract(
    (Field("name", "name", FieldType.STRING, required=False), Field(r"a\.b", "amount", FieldType.DECIMAL))
)
ANYTHING = Contract(
    (Field("id", "id", FieldType.STRING), Field("payload", "payload", FieldType.JSON, required=False))
)
KEYED = Contract((Field("id", "id", FieldType.STRING), Field("n", "n", FieldType.DECIMAL)), tombstone="id")


def amount(text: str) -> bytes:
    return b'{"a.b":' + text.encode() + b',"timestamp":1767268800000}'


LARGEST = "9" * 29 + "." + "9" * 9
DECIMALS: Mapping[bytes, Decimal | str] = {
    amount("0"): Decimal(0),
    amount("-0"): Decimal(0),
    amount("-0.0"): Decimal(0),
    amount("12.5"): Decimal("12.5"),
    amount("12.500000000000000000"): Decimal("12.5"),
    amount("0.1"): Decimal("0.1"),
    amount("0.000000001"): Decimal("1e-9"),
    amount(LARGEST): Decimal(LARGEST),
    amount("-" + LARGEST): Decimal("-" + LARGEST),
    amount("9007199254740993.000000001"): Decimal("9007199254740993.000000001"),  # no double is this precise
    amount("9223372036854775808"): Decimal(2**63),
    amount("1e3"): Decimal(1000),
    amount("1E+28"): Decimal(10**28),
    amount("-2.5e-3"): Decimal("-0.0025"),
    amount("100e-2"): Decimal(1),
    amount("0e99"): Decimal(0),
    amount("1234567890123456789e0"): Decimal(1234567890123456789),  # no double is this precise
    amount("0.12345678912345678900e+9"): Decimal("123456789.123456789"),
    amount("12.5" + "0" * 40): Decimal("12.5"),
    amount("-" + LARGEST + "0" * 20): Decimal("-" + LARGEST),
    b'{"more":{"x":1},"a.b":1e3}': Decimal(1000),
    b'{"a\\u002eb":12.5}': Decimal("12.5"),
    b'{"a\\u002eb":1e3}': "beyond_decimal",  # its digits are not found
    amount("1.0000000001e0"): "beyond_decimal",
    amount("12.5" + "0" * 40 + "1"): "beyond_decimal",
    amount("0.0000000001"): "beyond_decimal",
    amount("12.0000000001"): "beyond_decimal",
    amount("0.1" + "0" * 20 + "1"): "beyond_decimal",
    amount("1" + "0" * 29): "beyond_decimal",
    amount("1e29"): "beyond_decimal",
    amount("1e-10"): "beyond_decimal",
    amount("1e400"): "beyond_decimal",
    amount("1" * 39): "beyond_decimal",
    amount('"12.5"'): "wrong_type",
    amount('"NaN"'): "wrong_type",
    amount("true"): "wrong_type",
    amount("[1]"): "wrong_type",
    amount('{"a.b":1}'): "wrong_type",
    amount("null"): "null_field",
    amount("NaN"): "not_json",
    amount("01"): "not_json",
    amount("1."): "not_json",
    b"{}": "missing_field",
    b'{"a_b":1}': "missing_field",  # the name is not a pattern
    b'{"name":"x","a.b" :\r\n\t1.5 }': Decimal("1.5"),
    b'{"a.b":1,"a.b":2.5}': Decimal("2.5"),
    b'{"a.b":2.5,"a.b":"1"}': "wrong_type",
    b'{"name":"\\"a.b\\":7","a.b":2}': Decimal(2),
    b'{"a.b":2,"name":"\\"a.b\\":7,"}': Decimal(2),
    b'{"name":",\\"a.b\\":7}"}': "missing_field",
    b'{"more":{"a.b":7},"a.b":2}': Decimal(2),
    b'{"more":{"a.b":7}}': "missing_field",
    b'{"a.b":2,"more":[{"a.b":7}]}': Decimal(2),
}


def test_a_decimal_is_what_is_written_or_a_reason(spark: SparkSession) -> None:
    rows = judged(spark, MONEY, ((None, value) for value in DECIMALS))

    found = [[one.rule for one in row.reasons] or (row.amount, type(row.amount)) for row in rows]
    assert dict(zip(DECIMALS, found, strict=True)) == {
        text: [one] if isinstance(one, str) else (one, Decimal) for text, one in DECIMALS.items()
    }


# A payload's JSON text in the record, mapped to its text in silver.
PAYLOADS: Mapping[str, str | None] = {
    "null": None,
    '"ok"': "ok",
    '""': "",
    '"größer 🚚"': "größer 🚚",
    '"a?b"': "a?b",
    '"two words, {not json}"': "two words, {not json}",
    '"12 apples"': "12 apples",
    '"truely"': "truely",
    '" "': " ",
    '"line\\nend"': "line\nend",
    '"a\\"b"': 'a"b',
    '"12"': '"12"',
    '"-1.5"': '"-1.5"',
    '"true"': '"true"',
    '"null"': '"null"',
    '"{}"': '"{}"',
    '"[1,2]"': '"[1,2]"',
    '"\\"quoted\\""': '"\\"quoted\\""',
    "12": "12",
    "-1.5": "-1.5",
    "true": "true",
    "false": "false",
    "[]": "[]",
    "{}": "{}",
    '{ "a" : [ 1 , {"b": null} ] }': '{"a":[1,{"b":null}]}',
    '["x", "ü"]': '["x","ü"]',
}


@pytest.fixture(
    scope="module",
    params=[
        '{"id":"x","payload":%s,"timestamp":1767268800000}',
        '{"id":"x","timestamp":1767268800000,"payload":%s}',
    ],
    ids=["in the middle", "at the end"],
)
def kept(spark: SparkSession, request: pytest.FixtureRequest) -> dict[str, tuple[str | None, Any]]:
    """Return each payload's text in silver, and its value when sent."""
    records = [(None, (request.param % text).encode()) for text in PAYLOADS]
    rows = judged(spark, ANYTHING, records)
    assert all(row.reasons == [] for row in rows)
    frame = spark.createDataFrame([(n, row.payload) for n, row in enumerate(rows)], "n int, payload string")
    value = F.to_json(
        F.struct(json_text.to_variant(F.col("payload")).alias("v")), {"ignoreNullFields": "false"}
    )
    leaving = [row.value for row in frame.select("n", value.alias("value")).orderBy("n").collect()]
    both = zip(rows, leaving, strict=True)
    return {
        text: (row.payload, json.loads(left)["v"]) for text, (row, left) in zip(PAYLOADS, both, strict=True)
    }


def test_a_payload_is_readable_text_and_leaves_as_the_value_that_came(
    kept: dict[str, tuple[str | None, Any]],
) -> None:
    assert {text: stored for text, (stored, _) in kept.items()} == PAYLOADS
    assert {text: (leaving, type(leaving)) for text, (_, leaving) in kept.items()} == {
        text: (json.loads(text), type(json.loads(text))) for text in PAYLOADS
    }


# Ends of records that may be a payload, mapped to its text in silver and the rule that the record breaks.
ENDS: Mapping[str, tuple[str | None, str | None]] = {
    '"payload":{"a":1}}': ('{"a":1}', None),
    '"payload":{"a":1} }': ('{"a":1}', None),
    '"payload" : {"a":1}}': ('{"a":1}', None),
    '"payload":{"b":1.50,"a":"}"}}': ('{"a":"}","b":1.5}', None),
    '"payload":"{}","payload":{"a":1}}': ('{"a":1}', None),
    '"payload":{"a":1},"payload":"{}"}': ('"{}"', None),
    '"payload":"{}","other":{"payload":{}}}': ('"{}"', None),
    '"\\u0070ayload":"{}","other":{"payload":{}}}': ('"{}"', None),
    '"x\\"payload":{}}': (None, None),
    '"other":{"payload":{}}}': (None, None),
    '"payload":{"payload":{}}}': ('{"payload":{}}', None),
    '"payload":{"a":1}}tail': (None, "not_json"),
    '"payload":{"a":1}}}': (None, "not_json"),
    '"payload":{"a":1}},"more":{"payload":{"a":1}}': (None, "not_json"),
    '"payload":{"a":1}': (None, "not_json"),
    '"payload":{"a":1,"a":2}}': (None, "not_json"),
    "\"payload\":{'a':1}}": (None, "not_json"),
    '"payload":{"a":NaN}}': (None, "not_json"),
    '"id":{"a":1},"payload":{}}': ("{}", "wrong_type"),
}


def test_what_seems_to_end_a_record_is_kept_as_what_it_is(spark: SparkSession) -> None:
    records = [(None, f'{{"id":"x","timestamp":1767268800000,{end}'.encode()) for end in ENDS]

    rows = judged(spark, ANYTHING, records)

    found = [(row.payload, next((one.rule for one in row.reasons), None)) for row in rows]
    assert dict(zip(ENDS, found, strict=True)) == ENDS


def test_an_absent_payload_is_null(spark: SparkSession) -> None:
    (row,) = judged(spark, ANYTHING, [(None, b'{"id":"x"}')])

    assert (row.payload, row.reasons) == (None, [])


KEYS: Mapping[bytes | None, str] = {
    "größe".encode(): "größe",
    b" ": " ",
    b"": "key_empty",
    None: "key_null",
    b"caf\xe9": "key_not_utf8",
}


def test_a_tombstone_has_its_key_in_the_field_the_time_of_kafka_and_null_elsewhere(
    spark: SparkSession,
) -> None:
    rows = judged(spark, KEYED, ((key, None) for key in KEYS))

    found = {
        key: [reason.rule for reason in row.reasons] or row.id for key, row in zip(KEYS, rows, strict=True)
    }
    assert found == {key: [text] if text.startswith("key_") else text for key, text in KEYS.items()}
    assert all(row.n is None for row in rows)
    assert {row.event_time for row in rows} == {rows[0].event_time}
    assert all(reason.column == "id" for row in rows for reason in row.reasons)


def test_a_record_with_a_value_takes_nothing_from_its_key(spark: SparkSession) -> None:
    (row,) = judged(spark, KEYED, [(b"key", b'{"id":"field","n":1}')])

    assert (row.id, row.n, row.reasons) == ("field", Decimal(1), [])
