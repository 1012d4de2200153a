"""Numbers in JSON strings: which ones `accepts_text` accepts, and why the others are refused."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from typing import Any

import pytest

from lakehouse.streams.contract import Contract, Field, FieldType
from lakehouse.streams.definition import Source, Stream
from lakehouse.testing import Case
from tests.support.pipeline import utc

NOW = "2026-03-01T12:00:00Z"
FIELDS = (
    Field("n", "n", FieldType.LONG, required=False, accepts_text=True),
    Field("x", "x", FieldType.DOUBLE, required=False, accepts_text=True),
    Field("d", "d", FieldType.DECIMAL, required=False, accepts_text=True),
    Field("r", "r", FieldType.DECIMAL, required=False, scale=2, accepts_text=True),
)
STREAM = Stream("numbers", (Source("numbers", "numbers", Contract(FIELDS)),))

ACCEPTED: list[tuple[str, str, Any]] = [
    ("n", '"17"', 17),
    ("n", '"17.0"', 17),
    ("n", '"-0"', 0),
    ("n", '"9223372036854775807"', 2**63 - 1),
    ("n", "17", 17),
    ("n", "null", None),
    ("x", '"1.5"', 1.5),
    ("x", '"-2e3"', -2000.0),
    ("x", "1.5", 1.5),
    ("x", '"0"', 0.0),
    ("d", '"0.1"', Decimal("0.1")),
    ("d", '"1e-9"', Decimal("1e-9")),
    ("d", '"99999999999999999999999999999.999999999"', Decimal("99999999999999999999999999999.999999999")),
    ("r", '"100.80000000000001"', Decimal("100.80")),
    ("r", '"0.125"', Decimal("0.13")),
]
_OR_TEXT = "or a string that contains one, not a string: "
WHOLE, NUMBER = f"must be a whole number, {_OR_TEXT}", f"must be a number, {_OR_TEXT}"
NOTHING = {"n": None, "x": None, "d": None, "r": None, "event_time": utc("2026-03-01T12:00:00")}
REFUSED = [
    (
        "n",
        '"17.5"',
        "wrong_type",
        f'n {WHOLE}"17.5"',
    ),
    (
        "n",
        '"017"',
        "wrong_type",
        f'n {WHOLE}"017"',
    ),
    (
        "n",
        '"9223372036854775808"',
        "beyond_long",
        'n must be from -2^63 to 2^63 - 1, not "9223372036854775808"',
    ),
    (
        "n",
        '"1e3"',
        "wrong_type",
        f'n {WHOLE}"1e3"',
    ),
    ("x", '"NaN"', "not_a_number", 'x must be a number, not "NaN"'),
    ("x", '"-Infinity"', "not_a_number", 'x must be a number, not "-Infinity"'),
    ("d", '"inf"', "not_a_number", 'd must be a number, not "inf"'),
    ("x", '"1e400"', "not_finite", 'x is beyond the range of a double: "1e400"'),
    ("x", '"1e150"', "beyond_magnitude", 'x must be from -1e+140 to 1e+140, not "1e150"'),
    ("x", '"1,5"', "wrong_type", f'x {NUMBER}"1,5"'),
    ("x", '" 1"', "wrong_type", f'x {NUMBER}" 1"'),
    ("x", '""', "wrong_type", f'x {NUMBER}""'),
    ("x", "true", "wrong_type", "x must be a number, or a string that contains one, not a boolean: true"),
    ("x", '"0x1F"', "wrong_type", f'x {NUMBER}"0x1F"'),
    ("x", '"1d"', "wrong_type", f'x {NUMBER}"1d"'),
    (
        "d",
        '"0.0000000001"',
        "beyond_decimal",
        'd must have at most 29 digits before the decimal point and 9 after it: "0.0000000001"',
    ),
]
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def record(name: str, written: str) -> str:
    return f'{{"{name}":{written},"timestamp":1772366400000}}'


def test_a_string_with_a_number_is_the_number(case: Case) -> None:
    case(
        STREAM,
        [record(name, written) for name, written, _ in ACCEPTED],
        now=NOW,
        silver=[
            {
                "offset": place,
                "n": None,
                "x": None,
                "d": None,
                "r": None,
                "event_time": utc(NOW[:-1]),
                name: value,
            }
            for place, (name, _, value) in enumerate(ACCEPTED)
        ],
        dead=[],
    )


def test_any_other_string_is_refused_with_its_value(case: Case) -> None:
    case(
        STREAM,
        [record(name, written) for name, written, _, _ in REFUSED],
        now=NOW,
        silver=[],
        dead=[
            {"record": place, "rule": rule, "column": name, "message": message}
            for place, (name, _, rule, message) in enumerate(REFUSED)
        ],
    )


def test_random_strings_are_read_as_python_reads_them(case: Case) -> None:
    rng = random.Random(20261130)
    texts = ["".join(rng.choices("0123456789-+.eE", k=rng.randint(1, 7))) for _ in range(600)]
    texts += [f"{rng.randint(-(10**9), 10**9)}.{rng.randint(0, 10**9)}" for _ in range(100)]
    numbers = {
        place: float(text)
        for place, text in enumerate(texts)
        if _JSON_NUMBER.fullmatch(text) and abs(float(text)) <= 1e140
    }
    assert len(numbers) > 200

    case(
        STREAM,
        [record("x", json.dumps(text)) for text in texts],
        now=NOW,
        silver=[{"offset": place, "x": number} for place, number in numbers.items()],
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Field("a", "a", FieldType.STRING, accepts_text=True),
            "field a: accepts_text requires type long, double or decimal, not string",
        ),
        (
            lambda: Source("t", "t", Contract(FIELDS), format="avro"),
            "field n: accepts_text is only for JSON; in avro, numbers have types",
        ),
        (
            lambda: Source("t", "t", Contract(FIELDS), unique_by="n"),
            "field n: an id or sequence must always have one JSON type: remove accepts_text",
        ),
    ],
)
def test_accepts_text_is_refused_for_fields_that_cannot_have_it(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()
