"""Sums and statistics in days, weeks and months of a time zone, across clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from lakehouse.common.errors import SettingsError
from lakehouse.streams.definition import EventTimeProgress
from lakehouse.streams.keep_rows import check_keep_rows
from lakehouse.streams.kinds import Aggregates, Records, Windows, sql, windowed_statistics, windowed_sums
from lakehouse.streams.transforms.windows import StatisticsWindows, Tumbling
from lakehouse.streams.window_lengths import Calendar, Seconds, WindowLength
from lakehouse.testing import Case, SameGold

BERLIN = "Europe/Berlin"
WEEKS = windowed_sums(
    "rent", Records("rent", event_time="at"), by="flat", value="paid", length="week", zone=BERLIN
)


def paid(at: str, amount: int) -> dict[str, object]:
    return {"flat": "a", "paid": amount, "at": at}


def test_a_week_has_167_hours_in_march_and_169_in_october(case: Case) -> None:
    march, april = "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z"
    october, end = "2026-10-18T22:00:00Z", "2026-10-25T23:00:00Z"
    case(
        WEEKS,
        [
            paid(march, 1),
            paid("2026-03-29T23:59:59.999+02:00", 2),  # Sunday night
            paid("2026-03-30T00:00:00+02:00", 4),
            paid(october, 8),
            paid("2026-10-25T02:30:00+02:00", 16),
            paid("2026-10-25T02:30:00+01:00", 32),
            paid("2026-10-25T23:59:59.999+01:00", 64),
            paid(end, 128),
        ],
        now="2026-10-26T00:00:00Z",
        gold=[
            {"window_start": march, "window_end": april, "total_paid": Decimal(3), "count": 2},
            {"window_start": april, "window_end": "2026-04-05T22:00:00Z", "total_paid": Decimal(4)},
            {"window_start": october, "window_end": end, "total_paid": Decimal(120), "count": 4},
            {"window_start": end, "window_end": "2026-11-01T23:00:00Z", "total_paid": Decimal(128)},
        ],
        sent=[
            {"value": {"windowStart": 1_774_220_400_000, "windowEnd": 1_774_821_600_000, "totalPaid": 3}},
            {"value": {"windowStart": 1_774_821_600_000}},
            {"value": {"windowStart": 1_792_360_800_000}},
            {"value": {"windowStart": 1_792_969_200_000}},
        ],
        dead=[],
    )


def test_a_day_that_begins_at_one_is_final_after_23_hours(case: Case) -> None:
    """In Brazil, the clock was put forward at midnight on 4 November 2018."""
    stream = windowed_statistics(
        "load",
        "load",
        value="v",
        windows=(
            Windows(by="host", length="day", zone="America/Sao_Paulo"),
            Windows(by="host", length="month", zone="America/Sao_Paulo"),
        ),
        grace="1m",
    )
    assert [(table.name, table.export.topic) for table in stream.gold] == [
        ("load_day", "load-day"),
        ("load_month", "load-month"),
    ]

    def event(at: str) -> dict[str, object]:
        return {"host": "h", "v": 1.0, "timestamp": int(datetime.fromisoformat(at).timestamp() * 1000)}

    start, end = "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"
    month = {"window_start": "2018-11-01T03:00:00Z", "window_end": "2018-12-01T02:00:00Z", "is_final": False}
    before = {"window_start": "2018-11-03T03:00:00Z", "window_end": start, "count": 1, "is_final": True}
    day = {"window_start": start, "window_end": end, "count": 2}
    case(
        stream,
        [
            event("2018-11-03T23:59:59.999-03:00"),
            event("2018-11-04T01:00:00-02:00"),
            event("2018-11-05T01:59:59Z"),
        ],
        now="2018-11-05T02:00:59Z",
        gold={"load_day": [before, day | {"is_final": False}], "load_month": [month | {"count": 3}]},
    ).then(
        [event("2018-11-05T02:01:00Z")],
        now="2018-11-05T02:01:00Z",
        gold={
            "load_day": [before, day | {"is_final": True}, {"window_start": end, "count": 1}],
            "load_month": [month | {"count": 4}],
        },
    )


def test_aggregates_in_sql_have_the_same_weeks(case: Case) -> None:
    tables = Aggregates(by="flat", aggregates={"n": "count(*)"}, length="week", zone=BERLIN)
    start, end = "2026-10-18T22:00:00Z", "2026-10-25T23:00:00Z"
    case(
        sql("rent", Records("rent", event_time="at"), tables=tables),
        [paid("2026-10-25T23:59:59+01:00", 1), paid(start, 2), paid(end, 4)],
        now="2026-10-26T00:00:00Z",
        gold={
            "rent_week": [
                {"window_start": start, "window_end": end, "n": 2},
                {"window_start": end, "window_end": "2026-11-01T23:00:00Z", "n": 1},
            ]
        },
    )
    for length, said in (
        ("1h", r"tables\[0\]\.length: a zone applies only to the lengths day, week and month"),
        (None, r"tables\[0\]\.zone: the table has no windows; set length to day, week or month"),
    ):
        wrong = Aggregates(by="flat", aggregates={"n": "count(*)"}, length=length, zone=BERLIN)
        with pytest.raises(ValueError, match=f"^{said}"):
            sql("rent", "rent", tables=wrong)


@pytest.mark.soak
def test_neither_order_nor_cuts_show_in_weeks(assert_same_gold: SameGold) -> None:
    times = (f"2026-10-{day}T{hour}:30:00+02:00" for day in (18, 19, 25, 26) for hour in ("00", "01", "23"))
    records = [paid(time, 2**number) for number, time in enumerate(times)]
    assert_same_gold(WEEKS, records, now="2026-10-27T00:00:00Z", ways=3)


@pytest.mark.parametrize(
    ("length", "reached", "last"),
    [
        (Seconds(3600), "2026-03-29T22:00:00", "2026-03-29T21:00:00"),
        (Seconds(3600), "2026-03-29T21:59:59", "2026-03-29T20:00:00"),
        (Calendar("week", BERLIN), "2026-03-29T22:00:00", "2026-03-22T23:00:00"),
        (Calendar("week", BERLIN), "2026-03-29T21:59:59", "2026-03-15T23:00:00"),
        (Calendar("week", BERLIN), "2026-10-25T22:59:59", "2026-10-11T22:00:00"),
        (Calendar("month", BERLIN), "2026-02-28T23:00:00", "2026-01-31T23:00:00"),
    ],
)
def test_state_is_cleared_up_to_the_last_window_that_has_ended(
    length: WindowLength, reached: str, last: str
) -> None:
    windows = StatisticsWindows(Tumbling(("host",), length), grace_s=60, quantile_k=200, idle_after_s=300)
    front = datetime.fromisoformat(reached).replace(tzinfo=UTC)
    found = windows.unsettled_from(EventTimeProgress(front, front))
    assert found == datetime.fromisoformat(last).replace(tzinfo=UTC)
    assert windows.unsettled_from(EventTimeProgress(None, front)) is None


@pytest.mark.parametrize(
    ("length", "zone", "may_end"),
    [
        ("1h", None, True),
        ("7h", None, False),
        ("day", None, True),
        ("day", BERLIN, False),
        ("week", None, False),
    ],
)
def test_silver_rows_may_be_deleted_only_if_no_window_is_cut(
    length: str, zone: str | None, may_end: bool
) -> None:
    stream = windowed_sums(
        "rent", "rent", by="flat", value="paid", length=length, zone=zone, gold_table="rents"
    )
    kept = {"silver.rent": 86_400, "bronze.rent": 86_400}
    if may_end:
        check_keep_rows(kept, [stream])
    else:
        with pytest.raises(
            SettingsError, match=r"silver\.rent must keep every row: gold\.rents is computed from"
        ):
            check_keep_rows(kept, [stream])
