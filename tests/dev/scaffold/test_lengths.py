"""Which length of windows `lakehouse new stream` derives from event times, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakehouse.common.record_lines import Line, Record
from lakehouse.dev.scaffold.choosing import choose_time
from lakehouse.dev.scaffold.lengths import length_of
from lakehouse.dev.scaffold.reading import Sample
from lakehouse.dev.scaffold.samples import fields_of
from lakehouse.streams.window_lengths import window_length

START = datetime(2026, 3, 29, tzinfo=UTC)


def guessed(records: Sequence[dict[str, Any]], *keys: str) -> tuple[str, str]:
    lines = (Line(Record(b""), "s", number) for number in range(1, len(records) + 1))
    fields = fields_of([Sample(line, record) for line, record in zip(lines, records, strict=True)])
    length = length_of(choose_time(fields, None), [one for one in fields if one.path in keys])
    assert window_length(length.text, None).most_s == length.length_s
    assert window_length(length.longer, None).most_s > length.length_s
    return length.text, length.why


def every(seconds: float, count: int = 12, **fields: str) -> list[dict[str, Any]]:
    return [{"at": (START + timedelta(seconds=seconds * n)).isoformat(), **fields} for n in range(count)]


@pytest.mark.parametrize(
    ("seconds", "length", "apart"),
    [
        (0, "1m", "0 s"),
        (0.25, "1m", "0.3 s"),
        (6, "1m", "6 s"),
        (7, "5m", "7 s"),
        (30, "5m", "30 s"),
        (60, "15m", "1 min"),
        (300, "1h", "5 min"),
        (900, "6h", "15 min"),
        (3_600, "day", "1 h"),
        (8_640, "day", "2 h 24 min"),
    ],
)
def test_a_window_has_ten_records_of_a_key(seconds: float, length: str, apart: str) -> None:
    assert guessed(every(seconds, key="a"), "key") == (length, f"records of a key are usually {apart} apart")


def test_the_longest_guess_is_a_day() -> None:
    why = "records of a key are usually 1 d apart; week and month are longer"
    assert guessed(every(86_400, key="a"), "key") == ("day", why)


def test_only_records_of_one_key_are_compared_in_any_order_and_equal_times_are_counted() -> None:
    one, other = every(3_600, city="x", unit="C"), every(3_600, city="x", unit="F")
    mixed = [record for pair in zip(reversed(one), other, strict=True) for record in pair]

    assert guessed(mixed, "city", "unit") == ("day", "records of a key are usually 1 h apart")
    assert guessed(mixed, "city") == ("6h", "records of a key are usually 30 min apart")


def test_a_few_records_of_each_of_many_keys_are_enough() -> None:
    few = [record for city in "abcd" for record in every(300, 4, city=city)]

    assert guessed(few, "city") == ("1h", "records of a key are usually 5 min apart")


def test_a_pause_and_a_time_that_is_text_do_not_count() -> None:
    at = int(START.timestamp())
    times = [*range(at, at + 400, 10), *range(at + 90_000, at + 90_400, 10), "soon", None]

    assert guessed([{"at": one, "key": "a"} for one in times], "key")[0] == "5m"


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (every(3_600, 10, key="a"), "five minutes, because few samples have the same key"),
        (
            [record | {"key": f"{n}"} for n, record in enumerate(every(3_600, 99))],
            "five minutes, because few samples have the same key",
        ),
        ([{"key": "a"}] * 99, "five minutes, because no field looks like a time"),
    ],
)
def test_without_times_or_with_few_samples_the_length_is_five_minutes(
    records: list[dict[str, Any]], why: str
) -> None:
    assert guessed(records, "key") == ("5m", why)
