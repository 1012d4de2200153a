"""Names, rows and messages that kinds make from fields other than those of the built-in streams."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import pytest

from lakehouse.streams.definition import Field, FieldType
from lakehouse.streams.kinds import (
    Records,
    Side,
    Windows,
    joined_calls,
    running_totals,
    windowed_statistics,
    windowed_sums,
)
from lakehouse.streams.kinds.records import column_of, json_name_of
from lakehouse.streams.window_lengths import Seconds
from lakehouse.testing import Case, SameGold

NOON = "2026-03-01T12:00:00Z"
NOON_S = 1_772_366_400
MUCH = "6e28"
MAYBE = Field("meta.env", "env", FieldType.STRING, required=False)

LEDGER = windowed_sums(
    "ledger-entries",
    Records("ledger", event_time="at", event_time_unit="s"),
    by=("account", "entry.currency"),
    value=Field("delta", "delta", FieldType.DECIMAL, scale=2),
    length="1h",
    signed=True,
)


def entry(account: str, delta: float | str, at_s: int = NOON_S) -> str:
    return f'{{"account":"{account}","entry":{{"currency":"EUR"}},"delta":{delta},"at":{at_s}}}'


def test_names_are_made_of_json_names_and_lengths() -> None:
    assert [column_of(name) for name in ("serviceId", "meta.dt", "HTTPStatus", "a-b", "v2Id")] == [
        "service_id",
        "meta_dt",
        "http_status",
        "a_b",
        "v2_id",
    ]
    assert json_name_of("total_amount") == "totalAmount"
    assert [Seconds(length_s).label for length_s in (60, 300, 90, 3600, 86_400, 5400)] == [
        "1m",
        "5m",
        "90s",
        "1h",
        "1d",
        "90m",
    ]
    (table,) = LEDGER.gold
    assert (table.name, table.export.topic) == ("ledger_entries_1h", "ledger-entries-1h")
    assert table.keys == ("account", "entry_currency", "window_start")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Windows(by="a", length="1m", absent={"b": "none"}).fields,
            "`absent` lists names that are not fields of the key: b; the key has a",
        ),
        (
            lambda: windowed_statistics("s", "t", value="v", windows=Windows(by=MAYBE, length="1m")),
            "field meta.env is part of the key but optional: give it a default in `absent`",
        ),
        (
            lambda: windowed_sums("s", "t", by=MAYBE, value="v", length="1m"),
            "field meta.env is part of the key but optional: make it required",
        ),
        (
            lambda: windowed_sums("s", "t", by="standing", value="v", length="1m"),
            (
                "field standing: this kind already has a column standing; assign the field to a different "
                "column"
            ),
        ),
    ],
)
def test_a_key_that_could_not_be_one_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda value: windowed_sums("s", "t", by="a", value=value, length="1m"),
        lambda value: windowed_statistics("s", "t", value=value, windows=Windows(by="a", length="1m")),
        lambda value: running_totals("s", "t", by="a", value=value, threshold=Decimal(1)),
    ],
)
def test_an_optional_value_is_refused(make: Callable[[Field], object]) -> None:
    message = (
        "field v is the value but optional: make it required, so that records without it become dead "
        "letters, or use the kind sql, whose aggregates ignore nulls"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        make(Field("v", "v", FieldType.DECIMAL, required=False))


def test_what_stands_for_a_missing_field_is_named_by_the_field_or_its_column() -> None:
    for name in ("meta.env", "env"):
        (field,) = Windows(by=MAYBE, length="1m", absent={name: "none"}).fields
        assert (field.column, field.required) == ("env", False)


def test_amounts_of_either_sign_are_added_up_and_come_back_into_range(case: Case) -> None:
    outcome = case(
        LEDGER,
        [entry("a:b", 100.80000000000001), entry("a:b", -0.8), entry("c", 0), entry("d", MUCH)],
        [entry("d", MUCH)],
        now="2026-03-01T12:30:00Z",
        gold=[
            {"account": "a:b", "entry_currency": "EUR", "total_delta": Decimal(100), "count": 2},
            {"account": "c", "total_delta": Decimal(0), "count": 1},
            {"account": "d", "total_delta": None, "count": 2},
        ],
        dead=[],
    )
    outcome.then(
        [entry("d", f"-{MUCH}"), entry("d", 1)],
        gold=[
            {"account": "a:b", "total_delta": Decimal(100)},
            {"account": "c", "total_delta": Decimal(0)},
            {"account": "d", "total_delta": Decimal("60000000000000000000000000001"), "count": 4},
        ],
        sent=[
            {
                "key": "d:EUR",
                "value": {
                    "account": "d",
                    "entryCurrency": "EUR",
                    "windowStart": NOON_S * 1000,
                    "windowEnd": (NOON_S + 3600) * 1000,
                    "totalDelta": Decimal("60000000000000000000000000001"),
                    "count": 4,
                },
            }
        ],
    )


@pytest.mark.soak
def test_neither_order_nor_cuts_show_in_sums_of_either_sign(assert_same_gold: SameGold) -> None:
    amounts: tuple[float | str, ...] = (MUCH, MUCH, f"-{MUCH}", 5, f"-{MUCH}", 7, "-0.01")
    records = [entry("d", amount, NOON_S + number) for number, amount in enumerate(amounts)]
    assert_same_gold(LEDGER, records, now="2026-03-01T12:30:00Z", ways=3)


def test_statistics_are_of_any_fields(case: Case) -> None:
    stream = windowed_statistics(
        "latency",
        "requests",
        value="tookMs",
        windows=(
            Windows(by=("route", "region"), length="1m", absent={"region": "none"}),
            Windows(by="route", length="1h", to=None),
        ),
    )
    at_ms = NOON_S * 1000
    case(
        stream,
        [
            {"route": "/a", "tookMs": 10, "timestamp": at_ms},
            {"route": "/a", "region": "eu", "tookMs": 30, "timestamp": at_ms + 1},
            {"tookMs": 1, "timestamp": at_ms},
        ],
        now=NOON,
        gold={
            "latency_1m": [
                {"route": "/a", "region": "none", "avg": 10.0, "count": 1},
                {"route": "/a", "region": "eu", "avg": 30.0, "count": 1},
            ],
            "latency_1h": [{"route": "/a", "sum": 40.0, "min": 10.0, "max": 30.0, "count": 2}],
        },
        dead=[{"record": 2, "rule": "missing_field", "column": "route"}],
    )


def test_totals_are_of_any_fields(case: Case) -> None:
    stream = running_totals(
        "stock", Records("stock-moves", event_time="movedAt"), by="sku", value="pieces", threshold=Decimal(10)
    )
    case(
        stream,
        [{"sku": "nut", "pieces": 6, "movedAt": NOON}, {"sku": "nut", "pieces": 5.5, "movedAt": NOON}],
        now=NOON,
        gold={
            "stock_totals": [{"sku": "nut", "total": Decimal("11.5"), "count": 2}],
            "stock_notifications": [{"sku": "nut", "value": Decimal("11.5"), "crossing": 1}],
        },
        sent=[{"key": "nut", "value": {"sku": "nut", "value": Decimal("11.5")}}],
    )


def test_calls_are_joined_from_any_topics(case: Case) -> None:
    stream = joined_calls(
        "rides",
        (Side(records="pickups", payload="pickup"), Side(records="dropoffs", payload="dropoff")),
        pair=("driver", "rider"),
        gap="1m",
        grace="0s",
    )
    at_ms = NOON_S * 1000
    case(
        stream,
        {
            "pickups": [{"driver": "d", "rider": "r", "pickup": {"place": "here"}, "timestamp": at_ms}],
            "dropoffs": [{"driver": "d", "rider": "r", "dropoff": "there", "timestamp": at_ms + 50_000}],
        },
        now=NOON,
        later="2026-03-01T12:10:00Z",
        gold=[
            {
                "driver": "d",
                "rider": "r",
                "pickup": '{"place":"here"}',
                "dropoff": "there",
                "pickup_events": 1,
                "status": "closed",
            }
        ],
        sent=[
            {
                "value": {
                    "driver": "d",
                    "rider": "r",
                    "ts": at_ms,
                    "pickup": {"place": "here"},
                    "dropoff": "there",
                }
            }
        ],
    )
