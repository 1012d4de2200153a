"""Judging, compared with literal verdicts and with the plain-Python judge in tests/oracles/judging.py.

All literal cases are judged once, in one frame; a failure names the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import bronze
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.engine.records.validation import clean_schema, filter_clean, filter_dead, judge, watermark_of
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.streams.contract import OWN_TABLES, SILVER_ADDS
from lakehouse.streams.definition import Contract, Field, FieldType, Rule, Source
from tests.oracles.judging import CONTRACTS, judge_record
from tests.support.streams import METRICS, SALES

FIRST = datetime(1900, 1, 1, tzinfo=UTC)
SOURCE = replace(METRICS.sources[0], earliest_event_time=FIRST)
LANDED = datetime(2026, 1, 1, 12, 0, 0, 250, tzinfo=UTC)
KAFKA_TIME = datetime(2026, 1, 1, 11, 59, 59, 123_000, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VALID = b'{"serviceId":"api","metricName":"latency","value":12.5}'


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True)
class Verdict:
    reasons: list[tuple[str, str | None]]
    messages: list[str]
    columns: dict[str, Any]
    own_time: int | None
    raw_value: bytes | None


Judge = Callable[..., list[Verdict]]


def bronze_rows(spark: SparkSession, values: Iterable[bytes | None]) -> DataFrame:
    """Return records of one partition, in the given order, with a key and headers that no parser reads."""
    headers = [("trace", bytearray(b"\xff\x00")), ("trace", None)]
    rows = [
        (
            bytearray(b"\xfek%d" % offset),
            None if value is None else bytearray(value),
            headers if offset % 2 else None,
            "metrics-events",
            3,
            offset,
            KAFKA_TIME,
            0,
            LANDED,
            None,
        )
        for offset, value in enumerate(values)
    ]
    return local_frame(spark, rows, bronze.SCHEMA)


@pytest.fixture(scope="module")
def judge_values(spark: SparkSession) -> Judge:
    def run(
        values: Iterable[bytes | None],
        *,
        source: Source = SOURCE,
        watermark: datetime | None = None,
    ) -> list[Verdict]:
        judged = judge(bronze_rows(spark, values), source, watermark)
        names = [field.column for field in source.contract.fields]
        times = {name: F.unix_micros(name) for name in ("event_time", "own_time")}
        rows = judged.withColumns(times).orderBy("offset").collect()
        return [
            Verdict(
                reasons=[(reason.rule, reason.column) for reason in row.reasons],
                messages=[reason.message for reason in row.reasons],
                columns={name: row[name] for name in (*names, "event_time")},
                own_time=row.own_time,
                raw_value=None if row.raw is None or row.raw.value is None else bytes(row.raw.value),
            )
            for row in rows
        ]

    return run


def record(**fields: str) -> bytes:
    """Return a valid record with these fields replaced by raw JSON text; `absent` leaves a field out."""
    texts = {"serviceId": '"api"', "metricName": '"latency"', "value": "12.5"} | fields
    inside = ",".join(f'"{name}":{text}' for name, text in texts.items() if text != "absent")
    return b"{" + inside.encode() + b"}"


BROKEN_BYTES = {
    "a byte that no UTF-8 has": b'{"serviceId":"api\xff"}',
    "only that byte": b"\xff",
    "two bytes of three": b'"\xe2\x82',
    "two bytes of three inside a string": b'"\xe2\x82"',
    "an overlong slash": b'"\xc0\xaf"',
    "a surrogate half": b'"\xed\xa0\x80"',
    "beyond U+10FFFF": b'"\xf4\x90\x80\x80"',
    "UTF-16 with a byte order mark": VALID.decode().encode("utf-16"),
}
NOT_JSON = {
    "empty": b"",
    "a space": b" ",
    "line ends": b"\r\n",
    "no-break space around it": "\u00a0".encode() + VALID,
    "byte order mark": b"\xef\xbb\xbf" + VALID,
    "UTF-16 without a byte order mark": VALID.decode().encode("utf-16-le"),
    "zero byte behind": VALID + b"\x00",
    "truncated object": VALID[:-1],
    "truncated string": VALID[:15],
    "truncated array": b"[1",
    "truncated word": b"tru",
    "a word": b"hello",
    "a word behind": VALID + b" x",
    "two objects": VALID + VALID,
    "two objects on two lines": VALID + b"\n" + VALID,
    "two objects with a comma": VALID + b"," + VALID,
    "a comma behind": VALID + b",",
    "a brace behind": VALID + b"}",
    "a bracket behind": VALID + b"]",
    "a field behind": VALID + b',"more":1',
    "an object as a field behind": VALID + b' , "more":{"serviceId":"api"}',
    "another record as a field behind": VALID + b',"record":' + VALID,
    "a record behind null": b'null,"record":' + VALID,
    "null and a field": b'null,"more":1',
    "the end of an envelope and more": VALID + b',"offset":25} x',
    "numbers with a comma": b"1,2",
    "a name without an object": b'"serviceId":"api"',
    "NaN": record(value="NaN"),
    "Infinity": record(value="Infinity"),
    "-Infinity": record(value="-Infinity"),
    "NaN in an unknown field": record(more="NaN"),
    "NaN in an optional field": record(environment="NaN"),
    "NaN alone": b"NaN",
    "single quotes": VALID.replace(b'"', b"'"),
    "single quotes in an optional field": record(environment="'prod'"),
    "names without quotes": VALID.replace(b'"serviceId"', b"serviceId"),
    "leading zero": record(value="012"),
    "leading plus": record(value="+1"),
    "no digit before the point": record(value=".5"),
    "no digit behind the point": record(value="1."),
    "no digit in the exponent": record(value="1e"),
    "hexadecimal": record(value="0x10"),
    "comment before": b"/* c */" + VALID,
    "comment behind": VALID + b" // c",
    "comment inside": record(value="12.5 /* c */"),
    "hash comment": b"# c\n" + VALID,
    "comma at the end of the object": VALID[:-1] + b",}",
    "comma at the end of an array": record(more="[1,]"),
    "comma at the end of an array in an optional field": record(environment="[1,]"),
    "no value": record(value=""),
    "unknown escape": record(serviceId=r'"\q"'),
    "half an escape": record(serviceId=r'"\u00"'),
    "line end in a string": record(serviceId='"a\nb"'),
    "tab in a string": record(serviceId='"a\tb"'),
    "wrong bracket": record(more="[1}"),
    "half a surrogate pair in a required field": record(serviceId=r'"\ud800"'),
    "half a surrogate pair in an optional field": record(environment=r'"\ud800"'),
    "half a surrogate pair as a timestamp": record(timestamp=r'"\udc00"'),
    "half a surrogate pair in a complete record": record(environment=r'"a\udc00"', timestamp="1"),
    "an object with a key twice as a field": record(serviceId='{"a":1,"a":2}'),
    "an object with a key twice as an optional field": record(environment='{"a":1,"a":2}'),
    "an object with a key twice as a timestamp": record(timestamp='{"a":1,"a":2}'),
    "nested deeper than the parser goes": record(more="[" * 1100 + "]" * 1100),
    "a field nested deeper than the parser goes": record(value="[" * 5000 + "]" * 5000),
    "a name longer than the parser reads": VALID[:-1] + b',"' + b"n" * 60_000 + b'":1}',
    "more digits than the parser reads": record(value="1" * 1001),
}
NOT_AN_OBJECT = {
    "array": b"[]",
    "array of one object": b"[" + VALID + b"]",
    "number": b"12.5",
    "zero": b"0",
    "string": b'"api"',
    "string that holds an object": b'"{}"',
    "null": b"null",
    "null between spaces": b" null\n",
    "true": b"true",
    "false": b" false ",
}
STRING, NUMBER, BOOLEAN, OBJECT, ARRAY = '"12.5"', "7", "true", '{"a":1}', "[1]"
WRONG_FIELDS: dict[str, tuple[bytes, list[tuple[str, str | None]]]] = {
    "no fields": (
        b"{}",
        [("missing_field", "service_id"), ("missing_field", "metric_name"), ("missing_field", "value")],
    ),
    "serviceId missing": (record(serviceId="absent"), [("missing_field", "service_id")]),
    "metricName missing": (record(metricName="absent"), [("missing_field", "metric_name")]),
    "value missing": (record(value="absent"), [("missing_field", "value")]),
    "names in another case": (
        b'{"serviceid":"api","METRICNAME":"latency","value":1}',
        [("missing_field", "service_id"), ("missing_field", "metric_name")],
    ),
    "serviceId null": (record(serviceId="null"), [("null_field", "service_id")]),
    "metricName null": (record(metricName="null"), [("null_field", "metric_name")]),
    "value null": (record(value="null"), [("null_field", "value")]),
    "serviceId empty": (record(serviceId='""'), [("empty_string", "service_id")]),
    "metricName empty": (record(metricName='""'), [("empty_string", "metric_name")]),
    "metricName empty in a complete record": (
        record(metricName='""', timestamp="1"),
        [("empty_string", "metric_name")],
    ),
    **{
        f"{name} is {text}": (record(**{name: text}, timestamp="1"), [("wrong_type", column)])
        for name, column, texts in (
            (
                "serviceId",
                "service_id",
                (NUMBER, "-1.5", "1e5", "1e400", "-1e400", BOOLEAN, "false", OBJECT, ARRAY),
            ),
            ("metricName", "metric_name", (NUMBER, "-1.5", "1e5", "1e400", BOOLEAN, OBJECT, ARRAY)),
            ("value", "value", (STRING, '"NaN"', '"Infinity"', '""', BOOLEAN, OBJECT, "{}", ARRAY, "[]")),
            ("environment", "environment", (NUMBER, "1e400", BOOLEAN, OBJECT, ARRAY)),
        )
        for text in texts
    },
    **{
        f"timestamp is {text}": (record(timestamp=text), [("wrong_type", "event_time")])
        for text in (BOOLEAN, "1.5", "1767225600000.5", "1.7e12", "1e400", OBJECT, ARRAY, "1" * 39)
    },
    **{
        f"value is {text[:12]}": (record(value=text), [("not_finite", "value")])
        for text in ("1e400", "-1e400", "1.7976931348623159e308", "1" * 320)
    },
    **{
        f"value is {text[:24]}": (record(value=text), [("beyond_magnitude", "value")])
        for text in ("1.0000000000000002e140", "-1.0000000000000002e140", "1.7e308", "2" + "0" * 140)
    },
    **{
        f"timestamp is {text}": (record(timestamp=text), [("bad_timestamp", "event_time")])
        for text in (
            '""',
            '"yesterday at noon"',
            '"1767225600000"',
            '"2026-01-01"',
            '"2026-01-01T00:00:00"',
            '"2026-01-01 00:00:00"',
            '"2026-01-01  00:00:00Z"',
            '"2026-01-01 00:00:00 Z"',
            '"2026-01-01_00:00:00Z"',
            '"2026-01-01T00:00:00z"',
            '" 2026-01-01T00:00:00Z"',
            '"2026-01-01T00:00:00Z "',
            r'"2026-01-01T00:00:00Z\n"',
            '"Thu, 01 Jan 2026 00:00:00 EST"',
            '"Thu, 01 Jan 2026 00:00:00"',
            '"thu, 01 jan 2026 00:00:00 GMT"',
            '"31 Feb 2026 00:00:00 GMT"',
            '"1 Jan 2026 00:00:00 +0160"',
            '"001 Jan 2026 00:00:00 GMT"',
            '"2026-01-01T00:00:00+2"',
            '"2026-01-01T00:00:00+020"',
            '"2026-01-01T00:00:00+02:0"',
            '"2026-01-01T00:00:00+18:01"',
            '"2026-01-01T00:00:00+1801"',
            '"2026-01-01T00:00:00+19"',
            '"2026-01-01T00:00:00+01:60"',
            '"2026-01-01T00:00:00+0160"',
            '"2026-01-01-02"',
            '"2026-01-01T00:00.5Z"',
            '"2026-01-01T00:00:00.Z"',
            '"2026-01-01T00:00:00.0123456789Z"',
            '"2026-01-01T24:00:00Z"',
            '"2026-01-01T23:59:60Z"',
            '"2026-01-01T23:60:00Z"',
            '"2026-13-01T00:00:00Z"',
            '"2026-00-01T00:00:00Z"',
            '"2024-02-30T00:00:00Z"',
            '"2023-02-29T00:00:00Z"',
            '"26-01-01T00:00:00Z"',
            '"-2026-01-01T00:00:00Z"',
            '"10000-01-01T00:00:00Z"',
            '"0000-12-31T23:59:59Z"',
            '"0001-01-01T00:00:00+02:00"',
            '"0001-01-01T00:00:00Z"',
            '"1582-10-10T00:00:00Z"',
            '"1900-01-01T00:00:00+00:01"',
            '"1899-12-31T23:59:59.999999Z"',
            '"9998-12-31T23:59:59-00:01"',
            '"9999-01-01T00:00:00Z"',
            '"9999-12-31T23:59:59-18:00"',
            "-2208988800001",
            "253370764800000",
            '"\u0662\u0660\u0662\u0666-01-01T00:00:00Z"',
            "-62135596800001",
            "253402300800000",
            "9000000000000000000",
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775808",
            "9223372036854775808.0",
            "12345678901234567890",
            "1" * 38,
        )
    },
    "everything at once": (
        record(serviceId='""', metricName="true", value='"12.5"', environment="1", timestamp='"noon"'),
        [
            ("empty_string", "service_id"),
            ("wrong_type", "metric_name"),
            ("wrong_type", "value"),
            ("wrong_type", "environment"),
            ("bad_timestamp", "event_time"),
        ],
    ),
    "one field missing and a date ahead": (
        record(serviceId="absent", value="null", timestamp='"9998-12-31T23:59:59.999999Z"'),
        [("missing_field", "service_id"), ("null_field", "value"), ("future", "event_time")],
    ),
    "the last of two keys is wrong": (VALID[:-1] + b',"value":"x"}', [("wrong_type", "value")]),
    "the last of two keys is null": (VALID[:-1] + b',"value":null}', [("null_field", "value")]),
}
REFUSED: Mapping[str, tuple[bytes | None, list[tuple[str, str | None]]]] = {
    "no value": (None, [("value_null", None)]),
    **{f"not UTF-8: {case}": (value, [("not_utf8", None)]) for case, value in BROKEN_BYTES.items()},
    **{f"not JSON: {case}": (value, [("not_json", None)]) for case, value in NOT_JSON.items()},
    **{f"not an object: {case}": (value, [("not_an_object", None)]) for case, value in NOT_AN_OBJECT.items()},
    **WRONG_FIELDS,
}

SAME: dict[str, Any] = {
    "service_id": "api",
    "metric_name": "latency",
    "value": 12.5,
    "environment": None,
    "event_time": micros(KAFKA_TIME),
}
MIDNIGHT = micros(datetime(2026, 1, 1, tzinfo=UTC))
ACCEPTED: dict[str, tuple[bytes, dict[str, Any]]] = {
    "the least record": (VALID, {}),
    "spaces and line ends around it": (b" \t\r\n" + VALID + b"\n ", {}),
    "spaces inside": (VALID.replace(b":", b" :\n").replace(b",", b"\t, "), {}),
    "unknown fields": (record(more='{"a":{"b":[1,{"c":null}]}}', other="1e999", another='""'), {}),
    "an unknown field before": (b'{"more":{"serviceId":"x"},' + VALID[1:], {}),
    "an unknown object with a key twice": (record(more='{"a":1,"a":2}'), {}),
    "half a surrogate pair in an unknown field": (record(more=r'"\ud800"'), {}),
    "braces in a string": (record(environment='"},{"'), {"environment": "},{"}),
    "the last of two keys counts": (VALID[:-1] + b',"value":2,"value":3}', {"value": 3.0}),
    "the last of two timestamps counts": (record(timestamp='0,"timestamp":1'), {"event_time": 1000}),
    "a wrong key that a right one follows": (b'{"serviceId":1,' + VALID[1:], {}),
    "environment": (record(environment='"prod"'), {"environment": "prod"}),
    "environment null": (record(environment="null"), {}),
    "an empty environment stays empty": (record(environment='""'), {"environment": ""}),
    "an empty environment in a complete record": (
        record(environment='""', timestamp="0"),
        {"environment": "", "event_time": 0},
    ),
    "a space as a name": (record(serviceId='" "'), {"service_id": " "}),
    "a question mark as a name": (
        record(serviceId='"?"', timestamp="0"),
        {"service_id": "?", "event_time": 0},
    ),
    "unicode": (record(serviceId='"Zürich 東京 😀"'), {"service_id": "Zürich 東京 😀"}),
    "escapes": (record(serviceId=r'"\u00e9\n\"\\\/\ud83d\ude00"'), {"service_id": 'é\n"\\/😀'}),
    "an escaped zero": (record(serviceId=r'"\u0000"'), {"service_id": "\x00"}),
    "an escaped key": (VALID.replace(b"serviceId", rb"service\u0049d"), {}),
    **{
        f"a name that reads like {text}": (
            record(serviceId=text, metricName=text, environment=text, timestamp="0"),
            {"service_id": name, "metric_name": name, "environment": name, "event_time": 0},
        )
        for text, name in (
            (r'"\"Infinity\""', '"Infinity"'),
            ('"Infinity"', "Infinity"),
            ('"NaN"', "NaN"),
            ('"true"', "true"),
            ('"null"', "null"),
            ('"-1.5"', "-1.5"),
            ('"12"', "12"),
            ('"[1]"', "[1]"),
            ('"{}"', "{}"),
        )
    },
    **{
        f"value {text[:24]}": (record(value=text, timestamp="0"), {"value": number, "event_time": 0})
        for text, number in (
            ("0", 0.0),
            ("-0.0", 0.0),  # equal to zero; the sign is not guaranteed
            ("7", 7.0),
            ("1.00", 1.0),
            ("1E+2", 100.0),
            ("0.1", 0.1),
            ("0.30000000000000004", 0.30000000000000004),
            ("3.14159265358979323846264338327950288419716939937510", 3.141592653589793),
            ("9007199254740993", 9007199254740992.0),
            ("12345678901234567890", 12345678901234567890.0),
            ("1" + "0" * 140, 1e140),
            ("1e140", 1e140),
            ("-1e140", -1e140),
            ("5e-324", 5e-324),
            ("1e-400", 0.0),
        )
    },
    **{
        f"timestamp {text}": (record(timestamp=text), {"event_time": event_time})
        for text, event_time in (
            ("null", micros(KAFKA_TIME)),
            ("1767225600000", MIDNIGHT),
            ("1767225600000.0", MIDNIGHT),
            ("1767225600001", MIDNIGHT + 1000),
            ("-1.000", -1000),
            ("-0.0", 0),
            ("0", 0),
            ("-1", -1000),
            ("-2208988800000", -2_208_988_800_000_000),
            ('"2026-01-01T00:00:00Z"', MIDNIGHT),
            ('"2026-01-01T00:00Z"', MIDNIGHT),
            ('"2026-01-01T00:00+02:00"', MIDNIGHT - 7_200_000_000),
            ('"2026-01-01T02:00:00+02:00"', MIDNIGHT),
            ('"2025-12-31T18:30:00-05:30"', MIDNIGHT),
            ('"2026-01-01T00:00:00-00:00"', MIDNIGHT),
            ('"2026-01-01T18:00:00+18:00"', MIDNIGHT),
            ('"2026-01-01 00:00:00Z"', MIDNIGHT),
            ('"2026-01-01 02:00+02:00"', MIDNIGHT),
            ('"2026-01-01 02:00:00.123456+0200"', MIDNIGHT + 123_456),
            ('"2025-12-31 18:30:00-0530"', MIDNIGHT),
            ('"2025-12-31 18:30-0530"', MIDNIGHT),
            ('"2026-01-01 00:00:00+00"', MIDNIGHT),
            ('"2025-12-31T22:00-02"', MIDNIGHT),
            ('"2026-01-01T18:00:00+1800"', MIDNIGHT),
            ('"Thu, 01 Jan 2026 02:00:00 +0200"', MIDNIGHT),
            ('"1 Jan 2026 00:00:00 GMT"', MIDNIGHT),
            ('"Wed, 31 Dec 2025 18:30:00 -0530"', MIDNIGHT),
            ('"2026-01-01T00:00:00.5Z"', MIDNIGHT + 500_000),
            ('"2026-01-01T00:00:00.123456Z"', MIDNIGHT + 123_456),
            ('"2026-01-01T00:00:00.123456999Z"', MIDNIGHT + 123_456),
            ('"1969-12-31T23:59:59.999999Z"', -1),
            ('"2024-02-29T00:00:00Z"', micros(datetime(2024, 2, 29, tzinfo=UTC))),
            ('"1900-01-01T00:00:00Z"', micros(datetime(1900, 1, 1, tzinfo=UTC))),
        )
    },
    "nested in an unknown field": (record(more="[" * 900 + "]" * 900), {}),
    "a name of a megabyte": (
        record(serviceId='"' + "é" * 500_000 + '"'),
        {"service_id": "é" * 500_000},
    ),
    "a megabyte of an unknown field": (record(more='"' + "x" * 1_000_000 + '"'), {}),
}


@pytest.fixture(scope="module")
def literal_verdicts(judge_values: Judge) -> dict[str, Verdict]:
    cases: dict[str, bytes | None] = {case: value for case, (value, _) in REFUSED.items()}
    cases |= {case: value for case, (value, _) in ACCEPTED.items()}
    assert len(cases) == len(REFUSED) + len(ACCEPTED)
    return dict(zip(cases, judge_values(cases.values()), strict=True))


def test_a_broken_record_has_every_reason_and_its_raw_value(literal_verdicts: dict[str, Verdict]) -> None:
    assert {case: literal_verdicts[case].reasons for case in REFUSED} == {
        case: reasons for case, (_, reasons) in REFUSED.items()
    }
    assert [case for case, (value, _) in REFUSED.items() if literal_verdicts[case].raw_value != value] == []


def test_a_valid_record_becomes_its_columns(literal_verdicts: dict[str, Verdict]) -> None:
    assert [case for case in ACCEPTED if literal_verdicts[case].reasons] == []
    for case, (_, changed) in ACCEPTED.items():
        assert literal_verdicts[case].columns == SAME | changed, case
    assert {literal_verdicts[case].raw_value for case in ACCEPTED} == {None}


def test_messages_say_what_was_expected_and_what_came(judge_values: Judge) -> None:
    verdicts = judge_values(
        [
            record(serviceId="7", metricName="null", value="absent", environment="{}"),
            record(serviceId='""', metricName="[]", value='"12.5"', timestamp="true"),
            record(value="1e400", timestamp='"noon"'),
            record(timestamp='"2010-03-24 09:51:00"'),
            record(timestamp="1767269100001"),
            record(timestamp="1767200000000"),
        ],
        watermark=datetime(2026, 1, 1, tzinfo=UTC),
    )

    assert [verdict.messages for verdict in verdicts] == [
        [
            "serviceId must be a string, not a number: 7",
            "metricName is null",
            "value is missing",
            "environment must be a string, not an object: {}",
        ],
        [
            "serviceId is empty",
            "metricName must be a string, not an array: []",
            'value must be a number, not a string: "12.5"',
            (
                "timestamp must be epoch milliseconds (an integer) or ISO 8601 with an offset, "
                "not a boolean: true"
            ),
        ],
        [
            "value is beyond the range of a double: 1e400",
            (
                "timestamp must be epoch milliseconds (an integer) or ISO 8601 with an offset, "
                'from 1900-01-01T00:00:00Z to the year 9998, not "noon"'
            ),
        ],
        [
            (
                "timestamp must be epoch milliseconds (an integer) or ISO 8601 with an offset, "
                'from 1900-01-01T00:00:00Z to the year 9998, not "2010-03-24 09:51:00", which has no offset: '
                "set event_time_zone"
            )
        ],
        [
            (
                "event time 2026-01-01 12:05:00.001 is more than 300 s after the record landed, at "
                "2026-01-01 12:00:00.00025"
            )
        ],
        ["event time 2025-12-31 16:53:20 is before the watermark 2026-01-01 00:00:00.000000"],
    ]


LONG_TEXT = "x" * 100
# A record, mapped to the message of the only reason against it.
SHOWN: Mapping[bytes | None, str] = {
    record(value='"' + LONG_TEXT + '"'): f'value must be a number, not a string: "{LONG_TEXT[:79]}…',
    record(value='"a\\u001b[31m\\n"'): r'value must be a number, not a string: "a\u001B[31m\n"',
    record(value='"\u202e\u200b\u2028\u0085\u007f\ufeff\u00a0"'): (
        r'value must be a number, not a string: "\u{202e}\u{200b}\u{2028}\u{85}\u{7f}\u{feff}\u{a0}"'
    ),
    record(value='"日本 🚚"'): 'value must be a number, not a string: "日本 🚚"',
    record(value='{"a":[1,null]}'): 'value must be a number, not an object: {"a":[1,null]}',
    record(value="-1e141"): "value must be from -1e+140 to 1e+140, not -1e141",
    record(timestamp='"\u202e"'): (
        "timestamp must be epoch milliseconds (an integer) or ISO 8601 with an offset, "
        r'from 1900-01-01T00:00:00Z to the year 9998, not "\u{202e}"'
    ),
    b'{"a": \x1b\r\n': r'the value is not valid JSON: {"a": \u{1b}\u{d}\u{a}',
    b"": "the value is not valid JSON: ",
    b'"' + b"y" * 200 + b'"': f'the JSON value is not an object: "{"y" * 79}…',
    b"\xff\x00" * 30: f"the value is not UTF-8: {'ff00' * 20}…",
    b"\xff\x00": "the value is not UTF-8: ff00",
    None: "the Kafka record has no value",
}


def test_a_message_ends_with_the_value_cut_and_escaped(judge_values: Judge) -> None:
    verdicts = judge_values(SHOWN)

    assert dict(zip(SHOWN, (verdict.messages for verdict in verdicts), strict=True)) == {
        value: [message] for value, message in SHOWN.items()
    }


@pytest.mark.parametrize("tolerance_s", [0, 300])
def test_the_future_begins_just_behind_the_tolerance(spark: SparkSession, tolerance_s: int) -> None:
    limit = LANDED + timedelta(seconds=tolerance_s)
    times = {
        f'"{limit:%Y-%m-%dT%H:%M:%S.%f}Z"': False,
        f'"{limit + timedelta(microseconds=1):%Y-%m-%dT%H:%M:%S.%f}Z"': True,
        str(micros(limit) // 1000): False,
        str(micros(limit) // 1000 + 1): True,
    }
    rows = bronze_rows(spark, [record(timestamp=time) for time in times])

    judged = (
        judge(rows, replace(SOURCE, future_tolerance_s=tolerance_s), None)
        .orderBy("offset")
        .select("reasons.rule")
        .collect()
    )

    assert [row.rule for row in judged] == [["future"] if ahead else [] for ahead in times.values()]


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))])
def test_late_is_what_lies_before_the_watermark_and_not_what_is_on_it(
    judge_values: Judge, zone: timezone
) -> None:
    watermark = datetime(2025, 10, 26, 2, 30, 0, 500, tzinfo=UTC)
    times = {
        '"2025-10-26T02:30:00.000500Z"': [],
        '"2025-10-26T02:30:00.000499Z"': [("late", "event_time")],
        '"2025-10-26T05:30:00.0005+03:00"': [],
        "1761445800001": [],
        "1761445800000": [("late", "event_time")],
        "-1": [("late", "event_time")],
        "null": [],
    }

    verdicts = judge_values([record(timestamp=time) for time in times], watermark=watermark.astimezone(zone))

    assert [verdict.reasons for verdict in verdicts] == list(times.values())


def test_a_late_record_that_is_broken_has_both_reasons(judge_values: Judge) -> None:
    (verdict,) = judge_values([record(value="true", timestamp="0")], watermark=LANDED)

    assert verdict.reasons == [("wrong_type", "value"), ("late", "event_time")]


def test_without_a_watermark_nothing_is_late(judge_values: Judge) -> None:
    (verdict,) = judge_values([record(timestamp="-2208988800000")], watermark=None)

    assert verdict.reasons == []


def test_the_watermark_lags_behind_the_front_by_the_allowed_lateness() -> None:
    assert watermark_of(None, 60) is None
    assert watermark_of(LANDED, 0) == LANDED
    assert watermark_of(LANDED, 3600) == LANDED - timedelta(hours=1)
    first = datetime(1, 1, 1, tzinfo=UTC)  # accepted by an earlier version
    assert watermark_of(first, 3600) == first


def test_a_stream_may_add_rules_and_name_its_own_event_time(judge_values: Judge) -> None:
    contract = Contract(
        fields=(
            Field("key", "key", FieldType.STRING),
            Field("amount", "value", FieldType.DOUBLE, required=False),
            Field("kafka", "headers", FieldType.STRING, required=False),
        ),
        event_time="at",
    )
    too_low = Rule("too_low", "value", F.col("value") <= 0, F.concat(F.lit("got "), F.col("value")))
    source = Source("any", "any", contract, rules=lambda: (too_low,), earliest_event_time=FIRST)

    verdicts = judge_values(
        [
            b'{"key":"k","amount":-1,"at":0}',
            b'{"key":"k","amount":-1}',
            b'{"key":1,"amount":0,"at":"x","timestamp":"ignored"}',
            b'{"key":"k","amount":1,"at":5,"kafka":"h"}',
            b'{"key":"k"}',
            b'{"key":"k","at":5}',
        ],
        source=source,
    )

    assert [verdict.reasons for verdict in verdicts] == [
        [("too_low", "value")],
        [("too_low", "value")],
        [("wrong_type", "key"), ("bad_timestamp", "event_time"), ("too_low", "value")],
        [],
        [],
        [],
    ]
    assert verdicts[0].messages == ["got -1.0"]
    assert verdicts[3].columns == {"key": "k", "value": 1.0, "headers": "h", "event_time": 5000}
    assert verdicts[4].columns["event_time"] == micros(KAFKA_TIME)
    assert verdicts[5].columns == {"key": "k", "value": None, "headers": None, "event_time": 5000}


NO_KAFKA_TIMES = (None, -1, -2_208_988_800_001, 253_370_764_800_000)
"""No time, in bronze (None) and in Kafka or older bronze (-1); before 1900; after 9998."""


def test_without_a_time_of_kafkas_a_record_must_have_its_own(spark: SparkSession) -> None:
    def times_of(value: bytes | None, source: Source) -> list[tuple[int | None, list[str]]]:
        numbers = F.array(*(F.lit(ms).cast("bigint") for ms in (*NO_KAFKA_TIMES, 0, -2)))
        rows = bronze_rows(spark, [value] * 6).withColumn("key", F.lit(b"p"))
        stamp = F.timestamp_millis(F.element_at(numbers, F.col("offset").cast("int") + 1))
        judged = judge(rows.withColumn("timestamp", stamp), source, None).orderBy("offset")
        found = judged.select(F.unix_millis("event_time").alias("at"), "reasons.rule").collect()
        return [(row["at"], row["rule"]) for row in found]

    refused: list[tuple[int | None, list[str]]] = [(None, ["bad_timestamp"])] * len(NO_KAFKA_TIMES)
    assert times_of(VALID, SOURCE) == [*refused, (0, []), (-2, [])]
    sales = replace(SALES.sources[0], earliest_event_time=FIRST)
    assert times_of(None, sales) == [*refused, (0, []), (-2, [])]  # tombstones
    assert times_of(VALID[:-1] + b',"timestamp":7}', SOURCE) == [(7, [])] * 6


def test_clean_and_dead_together_are_the_input_and_dead_letters_keep_every_byte(spark: SparkSession) -> None:
    values = [value for value, _ in REFUSED.values()] + [value for value, _ in ACCEPTED.values()]
    rows = bronze_rows(spark, values).persist()

    judged = judge(rows, SOURCE, None)
    clean, dead = filter_clean(judged), filter_dead(judged)

    raw = ("key", "value", "headers")
    came = {row.offset: row for row in rows.withColumn("timestamp", F.unix_micros("timestamp")).collect()}
    refused = dead.withColumn("kafka_timestamp", F.unix_micros("kafka_timestamp")).collect()
    accepted = clean.select("topic", "partition", "offset").collect()
    assert sorted(row.offset for row in refused) == list(range(len(REFUSED)))
    assert sorted(row.offset for row in accepted) == list(range(len(REFUSED), len(values)))
    for row in refused:
        assert [row[name] for name in raw] == [came[row.offset][name] for name in raw]
        assert row.kafka_timestamp == came[row.offset].timestamp
    assert {(row.topic, row.partition) for row in [*refused, *accepted]} == {("metrics-events", 3)}
    rows.unpersist()


def test_clean_rows_have_the_columns_of_the_silver_table(spark: SparkSession) -> None:
    clean = filter_clean(judge(bronze_rows(spark, [VALID]), SOURCE, None))

    found = [(field.name, field.dataType.simpleString()) for field in clean.schema.fields]
    assert found == [
        ("service_id", "string"),
        ("metric_name", "string"),
        ("value", "double"),
        ("environment", "string"),
        ("event_time", "timestamp"),
        ("own_time", "timestamp"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("kafka_timestamp", "timestamp"),
        ("ingested_at", "timestamp"),
        ("admitted", "struct<after:timestamp,at:timestamp>"),
    ]
    assert found == [
        (field.name, field.dataType.simpleString()) for field in clean_schema(SOURCE.contract).fields
    ]


STRINGS = ['"api"', '"é\\u00e9"', '"\\ud83d\\ude00"', '"\\""', '"}"', '"{},"', '"],"', '"?"', '"7"', '"true"']
NUMBERS = ["0", "-0.0", "12.5", "1e5", "1e400", "-1e400", "5e-324", "0.1", "12345678901234567890"]
NUMBERS += ["1" * 39, "0." + "1" * 40, "1" * 320]
OTHERS = ['""', "true", "null", "{}", "[]", '{"a":{"b":[1,{"c":null}]}}', '{"a":1,"a":2}', '[{"a":1,"a":2}]']
BROKEN = [
    r'"\ud800"',
    "NaN",
    "01",
    "+1",
    ".5",
    "'a'",
    "tru",
    "",
    "[1,]",
    '{"a":1,}',
    '"\\q"',
    '"\t"',
    '"a',
    "1e",
    "1//x\n",
]
TAILS = [
    " x",
    ",",
    "}",
    "]",
    "{}",
    "null",
    ',"more":1',
    ',"more":{}',
    '],"record":[',
    ' ,"a":[2]',
    "//c",
    "\0",
]
WRONG_BYTES = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f", b"\xc0\x80"]
MINUTE_MS = 60_000

strings = st.one_of(
    st.sampled_from(STRINGS), st.text(alphabet="aé😀 {}[],:", min_size=1, max_size=5).map(lambda t: f'"{t}"')
)
numbers = st.one_of(
    st.sampled_from(NUMBERS),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(min_value=-(10**45), max_value=10**45).map(str),
)
harmless = st.sampled_from(STRINGS + NUMBERS + OTHERS)
anything = st.sampled_from(STRINGS + NUMBERS + OTHERS + BROKEN)
two_digits = st.integers(0, 62).map(lambda number: f"{number:02}")
iso_times = st.builds(
    "{}-{}-{}{}{}:{}{}{}".format,
    st.sampled_from(["2025", "2026", "2024", "0000", "0001", "9999", "1582"]),
    st.sampled_from(["01", "02", "12", "12", "13"]),
    st.sampled_from(["01", "28", "29", "30", "31", "32"]),
    st.sampled_from(["T", "T", " ", "  "]),
    st.sampled_from(["00", "11", "12", "23", "24"]),
    st.sampled_from(["00", "05", "59", "60"]),
    st.one_of(st.just(""), st.integers(0, 10**9 - 1).map(lambda n: f":30.{n}"), two_digits.map(":{}".format)),
    st.sampled_from(
        [
            *("Z", "Z", "+00:00", "+02:00", "-05:30", "+18:00", "-18:01", "+01:60", "", " Z"),
            *("+0200", "-0530", "+00", "-18", "-1801", "+0160", "+2", "+020"),
        ]
    ),
).map('"{}"'.format)
mail_times = st.builds(
    "{}{} {} {} {} {}".format,
    st.sampled_from(["", "Mon, ", "Sun, ", "sun, ", "Mon "]),
    st.sampled_from(["1", "01", "28", "29", "30", "31", "32", "0"]),
    st.sampled_from(["Jan", "Feb", "Apr", "Dec", "jan", "Mai"]),
    st.sampled_from(["2025", "2026", "2024", "0001", "9999", "26"]),
    st.sampled_from(["00:00:00", "23:59:59", "24:00:00", "12:60:00", "12:00", "1:00:00"]),
    st.sampled_from(["GMT", "+0000", "+0200", "-0530", "+1800", "-1801", "+0160", "EST", "Z", "+02:00"]),
).map('"{}"'.format)
recent = st.integers(-10, 6).map(lambda minutes: str(micros(LANDED) // 1000 + minutes * MINUTE_MS))
timestamps = st.one_of(
    recent,
    recent,
    st.sampled_from(["0", "-62135596800001", "253402300800000", "9" * 19, "1" * 38, "1" * 39, "1.5", "1e12"]),
    recent.map("{}.0".format),
    iso_times,
    mail_times,
)


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Draw fields, and combine them at random into records that are valid or broken in one or more ways.

    Hypothesis cannot draw enough for hundreds of records, and Spark is too slow for fewer per example.
    """
    fields = {"serviceId": strings, "metricName": strings, "value": numbers, "timestamp": timestamps}
    fields |= {"environment": strings, "more": harmless, "serviceid": harmless}
    drawn = {name: draw(st.lists(right, min_size=8, max_size=12)) for name, right in fields.items()}
    drawn_wrong = draw(st.lists(anything, min_size=8, max_size=12))
    chance = Random(draw(st.integers(0, 2**64)))
    return [put_together(drawn, drawn_wrong, chance) for _ in range(400)]


def put_together(fields: Mapping[str, list[str]], wrong: list[str], chance: Random) -> bytes:
    parts = []
    for name, right in fields.items():
        kind = chance.choices(["right", "wrong", "absent"], weights=[16, 1, 1])[0]
        if kind != "absent":
            parts.append(f'"{name}":{chance.choice(right if kind == "right" else wrong)}')
    if chance.random() < 0.05:
        parts.append(chance.choice(parts))
    chance.shuffle(parts)
    text = "{" + chance.choice([",", ",", ",", " ,\n"]).join(parts) + "}"
    place = chance.randrange(len(text) + 1)
    damage = chance.choices(
        ["none", "tail", "cut", "insert", "drop", "other", "bytes"], weights=[12, 1, 1, 1, 1, 1, 1]
    )[0]
    if damage == "bytes":
        encoded = text.encode()
        return encoded[:place] + chance.choice(WRONG_BYTES) + encoded[place:]
    damaged = {
        "none": text,
        "tail": text + chance.choice(TAILS),
        "cut": text[:place],
        "insert": text[:place] + chance.choice('{}[],:"0e.- \n\\') + text[place:],
        "drop": text[:place] + text[place + 1 :],
        "other": chance.choice([*wrong, f"[{text}]", f'null,"record":{text}']),
    }
    return damaged[damage].encode()


@pytest.mark.cases
@settings(
    max_examples=4,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # no shrinking: every example is a Spark job
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    values=batches(),
    watermark=st.one_of(st.none(), st.integers(0, 14).map(lambda m: LANDED - timedelta(minutes=m - 4))),
)
def test_a_judge_in_plain_python_comes_to_the_same_verdicts(
    judge_values: Judge, values: list[bytes], watermark: datetime | None
) -> None:
    verdicts = judge_values(values, watermark=watermark)

    for value, verdict in zip(values, verdicts, strict=True):
        expected = judge_record(
            CONTRACTS["metrics_events"],
            value,
            micros(KAFKA_TIME) // 1000,
            micros(LANDED),
            None if watermark is None else micros(watermark),
            earliest_us=micros(FIRST),
        )
        assert len(set(verdict.reasons)) == len(verdict.reasons), value
        assert set(verdict.reasons) == expected.reasons, value
        if not expected.reasons:
            assert verdict.columns == {**expected.columns, "event_time": expected.event_time_us}, value
            assert verdict.own_time == expected.own_time_us, value


def test_names_that_a_stream_cannot_have_are_known_without_spark() -> None:
    own = [field.column for field in SOURCE.contract.fields]
    assert clean_schema(SOURCE.contract).names == [*own, *SILVER_ADDS]
    assert DEAD_LETTERS.name in OWN_TABLES
