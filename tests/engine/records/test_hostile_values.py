"""No value makes judging fail: hostile values in every field of every contract, in one job each.

Spark raises an error on overflow, and such an expression would stop a stream at that record forever. So would
one that takes quadratic time in the length of a text. Verdicts are compared with the oracle's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import bronze
from lakehouse.engine.records.validation import judge
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.spark.execution import Amount, executing_for
from lakehouse.streams.contract import Contract, Field, FieldType
from lakehouse.streams.definition import Source
from tests.oracles.json_text import payload_meaning
from tests.oracles.judging import CONTRACTS, Kind, judge_record
from tests.support.pipeline import micros
from tests.support.streams import STREAMS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATE = NOW - timedelta(days=1)
SOURCES = {source.table: source for stream in STREAMS for source in stream.sources}

DIGITS = ("1", "0", "0.0", "-123.456", "9" * 38, "0." + "0" * 28 + "1", "7" * 900, "0." + "0" * 900 + "5")
EXPONENTS = (
    *("", "e0", "e9", "E+28", "e29", "e-9", "e-10", "e308", "e309", "e-324", "e-400", "e901", "e-899"),
    *("e9999", "e10000", "e-10000", "e+0002", "e-" + "0" * 40 + "9", "e" + "9" * 60, "e-" + "9" * 60),
    *(
        f"e{sign}{2**bits + more}"
        for bits in (31, 32, 63, 64)
        for sign in ("", "-")
        for more in (-39, -1, 0, 1)
    ),
)
NUMBERS = tuple(digits + exponent for digits in DIGITS for exponent in EXPONENTS)
TEXTS = (
    *("", " ", "\0", "\u2028", "\ufeff", "🚚", "$1", "\\", '"', "}", "?", "now", "epoch", "NaN", "Infinity"),
    *("1e2147483647", "9" * 400, "x" * 300_000, "true", "null", "{}", "[1e400]"),
    *(
        "+294247-01-10T04:00:54Z",
        "-290308-12-21T19:59:05Z",
        "9999999-01-01T00:00:00Z",
        "0000-00-00T00:00:00Z",
    ),
    *(
        "2026-01-01T00:00:00+18:00",
        "2026-01-01T00:00:00-99:99",
        "2026-01-01T00:00:00.999999999Z",
        "2026-01-01",
    ),
)
OTHERS = (
    *("null", "true", "false", "{}", "[]", "[[]]", '{"":null}', "[0,-0.0,1e5]", "[" * 200 + "]" * 200),
    *('{"a":' * 200 + "1" + "}" * 200, "[" + ",".join(["17"] * 10_000) + "]"),
    "{" + ",".join(f'"k{number}":{number}' for number in range(2_000)) + "}",
)
VALUES = (*NUMBERS, *map(json.dumps, TEXTS), *OTHERS)
KEYS = (None, b"", b"k", b"\0", b"\xff", b"\xed\xa0\x80", "\u2028".encode(), b"k" * 40_000)


def valid(kind: Kind) -> str:
    return "12.5" if kind in (Kind.DOUBLE, Kind.DECIMAL) else '"x"'


def records(table: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield keys and values: each value in each field and as the time, with and without a valid timestamp."""
    fields = {field.name: valid(field.kind) for field in CONTRACTS[table].fields}
    for one in (*fields, "timestamp", "more"):
        for text in VALUES:
            for time in ({}, {"timestamp": str(micros(NOW) // 1000)}):
                texts = fields | time | {one: text}
                yield (
                    b"k",
                    ("{" + ",".join(f'"{name}":{value}' for name, value in texts.items()) + "}").encode(),
                )
    for key in KEYS:
        yield key, None


def check_columns(table: str, found: dict[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare silver's columns with the oracle's; a payload may be a number that no double can represent."""
    for field in CONTRACTS[table].fields:
        here, there = found[field.column], expected[field.column]
        if field.kind is Kind.ANY:
            here, there = payload_meaning(here), payload_meaning(there)
        if not isinstance(there, Decimal) or there.is_finite():
            assert here == there


@pytest.mark.parametrize("amount", [Amount.FEW, pytest.param(Amount.MANY, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "table",
    [
        pytest.param(name, marks=() if name == "sales_events" else pytest.mark.soak)
        for name in CONTRACTS
        if name != "call_metrics"  # as call_analytics
    ],
)
def test_no_value_in_any_field_makes_judging_fail(spark: SparkSession, table: str, amount: Amount) -> None:
    given = list(records(table))
    rows = [
        (key, value, None, "any", 0, offset, NOW, 0, NOW, None) for offset, (key, value) in enumerate(given)
    ]

    with executing_for(spark, amount):
        judged = judge(local_frame(spark, rows, bronze.SCHEMA), SOURCES[table], LATE)
        found = judged.withColumn("event_time", F.unix_micros("event_time")).drop("raw").collect()

    assert len(found) == len(given)
    for row in found:
        key, value = given[row.offset]
        expected = judge_record(
            CONTRACTS[table], value, micros(NOW) // 1000, micros(NOW), micros(LATE), key=key
        )
        shown = (row.offset, key, value and value[:300])
        assert {(one.rule, one.column) for one in row.reasons} == expected.reasons, shown
        if not expected.reasons:
            assert row.event_time == expected.event_time_us, shown
            check_columns(table, row.asDict(), expected.columns)


ANY_TYPE = (
    *(Field(kind.value, kind.value, kind, required=False) for kind in FieldType),
    Field("rounded", "rounded", FieldType.DECIMAL, required=False, scale=2),
    Field("id", "id", FieldType.STRING, required=False, accepts_numbers=True),
)
IN_THE_RECORD = Contract(ANY_TYPE, "at", event_time_unit="s", event_time_zone="America/St_Johns")
IN_AN_OBJECT = replace(
    IN_THE_RECORD,
    fields=tuple(replace(field, name=f"in.{field.name}") for field in ANY_TYPE),
    event_time="in.at",
)


@pytest.mark.soak
@pytest.mark.parametrize("amount", [Amount.FEW, Amount.MANY])
def test_a_value_is_judged_in_an_object_as_it_is_in_the_record(spark: SparkSession, amount: Amount) -> None:
    names = (*(field.name for field in ANY_TYPE), "at")
    given = [f'{{"{name}":{text}}}' for name in names for text in VALUES]
    found = []
    for contract, shape in ((IN_THE_RECORD, "%s"), (IN_AN_OBJECT, '{"in":%s}')):
        values = [(shape % text).encode() for text in given]
        rows = [
            (b"k", value, None, "any", 0, offset, NOW, 0, NOW, None) for offset, value in enumerate(values)
        ]
        with executing_for(spark, amount):
            judged = judge(local_frame(spark, rows, bronze.SCHEMA), Source("any", "any", contract), LATE)
            kept = judged.withColumn("event_time", F.unix_micros("event_time")).drop("raw")
            found.append(kept.orderBy("offset").collect())

    for text, here, there in zip(given, *found, strict=True):
        rules = [[(one.rule, one.column) for one in row.reasons] for row in (here, there)]
        assert rules[0] == rules[1], text[:300]
        if not rules[0]:
            assert repr(here) == repr(there), text[:300]
