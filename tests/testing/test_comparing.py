"""Expected literal values compared with actual ones, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from lakehouse.testing.comparing import differences, is_same

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (1, Decimal("1.000000000")),
        ("0.3", Decimal("0.300000000")),
        (0.3, 0.1 + 0.2),
        (0.3, Decimal("0.30000000001")),
        (float("nan"), float("nan")),
        (pytest.approx(0.31, abs=0.1), 0.3),
        ("2026-03-29T12:00:00Z", NOON),
        ("2026-03-29T12:00:00", NOON),
        (NOON.astimezone(timezone(timedelta(hours=2))), NOON),
        ("größe", "größe".encode()),
        ("größe".encode(), "größe"),
        ({"a": {"b": 1}}, {"a": {"b": Decimal(1), "c": 2}, "d": None}),
        ([1, {"a": None}], [1.0, {"a": None, "b": 2}]),
        (None, None),
    ],
)
def test_a_value_is_the_same_in_the_ways_that_a_test_writes_it(expected: object, found: object) -> None:
    assert is_same(expected, found)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (Decimal("0.3"), Decimal("0.300000001")),
        ("0.3", Decimal("0.300000001")),
        ("much", Decimal(1)),
        (0.3, 0.3001),
        (None, 0),
        (0, None),
        ("1", "1 "),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        ("2026-03-29T12:00:01Z", NOON),
    ],
)
def test_a_value_is_another_one(expected: object, found: object) -> None:
    assert not is_same(expected, found)


def test_rows_that_name_little_leave_those_that_name_more_their_counterparts() -> None:
    found = [{"a": 1, "b": 2}, {"a": 1, "b": 3}]

    assert differences("t", [{"a": 1}, {"a": 1, "b": 2}], found, ["a", "b"]) == []
    assert differences("t", [{"a": 1}, {"b": 4}], found, ["a", "b"])[1:] == [
        "  - expected  b=4",
        "  + found     a=1, b=3",
    ]
