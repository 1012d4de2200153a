"""Which files can contain a row: decided by Delta's statistics, and never excluding one wrongly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.storage.tables.pruning import Between, Bounds, Near, last_ones

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR = Bounds(
    {"at": "2026-05-04T12:00:00.000Z", "number": 3, "status": "closed"},
    {"at": "2026-05-04T12:59:59.999Z", "number": 8, "status": "open"},
)


@pytest.mark.parametrize(
    ("first_s", "last_s", "expected"),
    [
        (None, -0.001, False),
        (None, 0, True),
        (3599.9995, None, True),  # within the millisecond that Delta cuts off
        (3600.001, None, False),
        (None, None, True),
        (-9, 9, True),
    ],
)
def test_a_time_is_compared_with_the_bounds_and_the_millisecond_cut_off(
    first_s: float | None, last_s: float | None, *, expected: bool
) -> None:
    ends = [None if end is None else NOON + timedelta(seconds=end) for end in (first_s, last_s)]

    assert Between("at", *ends).may_hold(HOUR) is expected


def test_numbers_and_texts_are_compared_with_the_bounds() -> None:
    assert Between("number", 8, 9).may_hold(HOUR)
    assert not Between("number", 9, None).may_hold(HOUR)
    assert Between("status", "open", "open").may_hold(HOUR)
    assert not Between("status", "open", "open").may_hold(Bounds({"status": "closed"}, {"status": "closed"}))


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds({}, {}),
        Bounds({"at": "+12026-01-01T00:00:00.000Z"}, {"at": 7}),
        Bounds({"at": None}, {}),
        Bounds({"at": "2027-01-01 00:00:00"}, {"at": "2025-01-01T00:00:00.000"}),
        Bounds({"at": {"a": 1}}, {"at": ["2025-01-01T00:00:00Z"]}),
        Bounds({"at": 1.5}, {"at": True}),
    ],
)
def test_what_is_unknown_can_hold_any_row_and_the_greatest_time(bounds: Bounds) -> None:
    assert Between("at", NOON, NOON).may_hold(bounds)
    assert last_ones({"known": HOUR, "unknown": bounds}, "at") == ["known", "unknown"]


@pytest.mark.parametrize(
    "noted",
    ["2026-05-04T14:00:00.000+02:00", "2026-05-04T08:29:08.000-03:30:52", "2026-05-04T12:00:00+00:00"],
)
def test_a_time_of_a_session_in_any_zone_is_understood(noted: str) -> None:
    bounds = Bounds({"at": noted}, {"at": noted})

    assert Between("at", NOON, NOON).may_hold(bounds)
    for far in (NOON - timedelta(seconds=1), NOON + timedelta(seconds=1)):
        assert not Between("at", far, far).may_hold(bounds)
    assert last_ones({"noon": bounds, "an hour on": HOUR}, "at") == ["an hour on"]
    assert last_ones({"noon": bounds, "no time": Bounds({}, {"at": "x"})}, "at") == ["noon", "no time"]


def test_all_conditions_of_one_group_have_to_hold() -> None:
    here, there = Between("at", NOON, NOON), Between("number", 9, 9)

    assert Near(((here,), (there,))).may_hold(HOUR)
    assert not Near(((here, there),)).may_hold(HOUR)
    assert (Near(((there,),)) | Near(((here,),))).may_hold(HOUR)
    assert not Near(()).may_hold(HOUR)


def test_the_greatest_time_is_sought_where_it_can_be() -> None:
    files = {
        "old": Bounds({}, {"at": "2026-05-04T11:00:00.000Z"}),
        "newest": Bounds({}, {"at": "2026-05-04T12:00:00.123Z"}),
        "the same millisecond": Bounds({}, {"at": "2026-05-04T12:00:00.123Z"}),
        "unknown": Bounds({}, {}),
    }

    assert sorted(last_ones(files, "at")) == ["newest", "the same millisecond", "unknown"]
    assert last_ones({}, "at") == []


@given(
    micros=st.lists(st.integers(0, 10_000), min_size=1),
    first=st.integers(-1, 10_001),
    length=st.integers(0, 3_000),
)
def test_a_file_with_a_row_between_is_never_skipped(micros: list[int], first: int, length: int) -> None:
    def noted(value: int) -> str:
        return (NOON + timedelta(microseconds=value - value % 1000)).isoformat().replace("+00:00", "Z")

    bounds = Bounds({"at": noted(min(micros))}, {"at": noted(max(micros))})
    ends = (NOON + timedelta(microseconds=first), NOON + timedelta(microseconds=first + length))

    if any(first <= value <= first + length for value in micros):
        assert Between("at", *ends).may_hold(bounds)
