"""The window that contains a time, in Spark and in Python: literal windows, and an oracle."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.streams.window_lengths import Calendar, Seconds, Unit, WindowLength, window_length

BERLIN, KOLKATA, SAO_PAULO = "Europe/Berlin", "Asia/Kolkata", "America/Sao_Paulo"
BEIRUT, HAVANA, ST_JOHNS = "Asia/Beirut", "America/Havana", "America/St_Johns"
LORD_HOWE = "Australia/Lord_Howe"  # its clock changes by half an hour
HOUR_US = 3_600_000_000


def micros(text: str) -> int:
    """Return a time, in UTC unless it has an offset, as microseconds since the epoch."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


# A length, and the starts (UTC) of three successive windows.
WINDOWS: list[tuple[WindowLength, str, str, str]] = [
    (Seconds(300), "2026-03-29 01:00", "2026-03-29 01:05", "2026-03-29 01:10"),
    (Seconds(604_800), "2025-12-25 00:00", "2026-01-01 00:00", "2026-01-08 00:00"),
    # The epoch was a Thursday.
    (Calendar("week"), "1969-12-22 00:00", "1969-12-29 00:00", "1970-01-05 00:00"),
    (Calendar("day"), "2024-02-28 00:00", "2024-02-29 00:00", "2024-03-01 00:00"),
    (Calendar("month"), "2024-02-01 00:00", "2024-03-01 00:00", "2024-04-01 00:00"),
    (Calendar("month"), "2025-11-01 00:00", "2025-12-01 00:00", "2026-01-01 00:00"),
    # In Berlin, the clock is put forward on 29 March and put back on 25 October.
    (Calendar("day", BERLIN), "2026-03-28 23:00", "2026-03-29 22:00", "2026-03-30 22:00"),
    (Calendar("week", BERLIN), "2026-03-22 23:00", "2026-03-29 22:00", "2026-04-05 22:00"),
    (Calendar("month", BERLIN), "2026-02-28 23:00", "2026-03-31 22:00", "2026-04-30 22:00"),
    (Calendar("day", BERLIN), "2026-10-24 22:00", "2026-10-25 23:00", "2026-10-26 23:00"),
    (Calendar("week", BERLIN), "2026-10-18 22:00", "2026-10-25 23:00", "2026-11-01 23:00"),
    (Calendar("month", BERLIN), "2026-09-30 22:00", "2026-10-31 23:00", "2026-11-30 23:00"),
    (Calendar("month", KOLKATA), "2026-01-31 18:30", "2026-02-28 18:30", "2026-03-31 18:30"),
    # Midnight is skipped: 00:00 becomes 01:00.
    (Calendar("day", SAO_PAULO), "2018-11-03 03:00", "2018-11-04 03:00", "2018-11-05 02:00"),
    (Calendar("day", BEIRUT), "2024-03-29 22:00", "2024-03-30 22:00", "2024-03-31 21:00"),
    (Calendar("week", BEIRUT), "2024-03-24 22:00", "2024-03-31 21:00", "2024-04-07 21:00"),
    # A day ends an hour later, as 00:00 becomes 23:00.
    (Calendar("day", SAO_PAULO), "2018-02-17 02:00", "2018-02-18 03:00", "2018-02-19 03:00"),
    # Midnight occurs twice, as 01:00 becomes 00:00.
    (Calendar("day", HAVANA), "2025-11-01 04:00", "2025-11-02 04:00", "2025-11-03 05:00"),
    # A minute after midnight, 00:01 becomes 23:01 of the day before.
    (Calendar("day", ST_JOHNS), "2010-11-06 02:30", "2010-11-07 02:30", "2010-11-08 03:30"),
    # The greatest change since 2000: 03:00 became 00:00.
    (Calendar("day", "Antarctica/Casey"), "2020-03-07 13:00", "2020-03-08 16:00", "2020-03-09 16:00"),
    # A day that a country skipped has no window.
    (Calendar("day", "Pacific/Apia"), "2011-12-29 10:00", "2011-12-30 10:00", "2011-12-31 10:00"),
]


def test_windows_follow_one_another_in_python() -> None:
    for length, *texts in WINDOWS:
        start, end, next_end = map(micros, texts)
        times = (start, start + 1, (start + end) // 2, end - 1)
        assert [length.start_of(time) for time in times] == [start] * 4, (length, texts)
        ends = (length.end_of(start), length.start_of(end), length.end_of(end))
        assert ends == (end, end, next_end), (length, texts)
        assert length.previous(end) == start, (length, texts)
        assert end - start <= length.most_s * 1_000_000, (length, texts)


LOCAL: dict[Unit, Callable[[date], tuple[int, ...]]] = {
    "day": lambda day: (day.toordinal(),),
    "week": lambda day: day.isocalendar()[:2],
    "month": lambda day: (day.year, day.month),
}


def local(calendar: Calendar, time: int) -> tuple[int, ...]:
    """Return the local day, ISO week or month of a time."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)
    return LOCAL[calendar.unit](moment.astimezone(ZoneInfo(calendar.zone)).date())


def test_spark_agrees_and_a_window_has_all_times_of_a_local_day_week_or_month(spark: SparkSession) -> None:
    """The oracle is the local date from zoneinfo: the same from start to end, and different outside."""
    lengths = [
        Seconds(300),
        Calendar("day", ST_JOHNS),
        *(Calendar("day", zone) for zone in (SAO_PAULO, BEIRUT, LORD_HOWE)),
        *(Calendar("week", zone) for zone in (BERLIN, BEIRUT)),
        *(Calendar("month", zone) for zone in (BERLIN, KOLKATA)),
    ]
    drawn = random.Random(4)
    times = {drawn.randrange(micros("1990-01-01"), micros("2026-01-01")) for _ in range(250)}
    times |= {
        micros(text) + more
        for _, *starts in WINDOWS
        for text in starts
        for more in (-HOUR_US, -1, 0, 1, HOUR_US // 4, HOUR_US)
    }
    rows = spark.createDataFrame([(None,), *((time,) for time in sorted(times))], "micros long")
    rows = rows.select("micros", F.timestamp_micros("micros").alias("at"))
    starts = [F.expr(length.start("at")).alias(f"start{place}") for place, length in enumerate(lengths)]
    ends = [F.expr(length.end(f"start{place}")).alias(f"end{place}") for place, length in enumerate(lengths)]
    found = rows.select("micros", *starts).select("*", *ends)
    names = [name for place in range(len(lengths)) for name in (f"start{place}", f"end{place}")]
    nothing, *windows = found.select("micros", *(F.unix_micros(name) for name in names)).collect()

    assert set(nothing) == {None}
    for time, *spans in windows:
        for length, start, end in zip(lengths, spans[::2], spans[1::2], strict=True):
            assert (length.start_of(time), length.end_of(start)) == (start, end)
            if (
                isinstance(length, Calendar) and length.zone != ST_JOHNS
            ):  # its clock went back to the day before
                before, first, own, last, after = (
                    local(length, at) for at in (start - 1, start, time, end - 1, end)
                )
                assert before < first == own == last < after, (length, time)


@pytest.mark.parametrize(
    ("given", "length", "texts", "most_h"),
    [
        (("90s",), Seconds(90), ("90s", "90", "90 s"), 0.025),
        (("1h30m",), Seconds(5400), ("90m", "5400", "5400 s"), 1.5),
        (("7d",), Seconds(604_800), ("7d", "604800", "604800 s"), 168),
        (("day",), Calendar("day"), ("day", "day (UTC)", "day (UTC)"), 24),
        (
            ("week", BERLIN),
            Calendar("week", BERLIN),
            ("week", "week (Europe/Berlin)", "week (Europe/Berlin)"),
            171,
        ),
    ],
)
def test_a_length_is_given_and_written_as_text(
    given: tuple[str, ...], length: WindowLength, texts: tuple[str, str, str], most_h: float
) -> None:
    assert window_length(*given) == length
    assert (length.label, length.recorded, str(length)) == texts
    assert length.most_s == most_h * 3600


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: window_length("1 week"),
            "expected a duration, such as 90s, 15m, 1h30m or 7d; or day, week or month",
        ),
        (
            lambda: window_length("7d", BERLIN),
            (
                "a zone applies only to the lengths day, week and month; windows of 7d are counted from the "
                "epoch. Remove the zone, or set length to one of these"
            ),
        ),
        (
            lambda: window_length("day", "Berlin"),
            "zone 'Berlin' is not an IANA time zone, such as Europe/Berlin",
        ),
        (lambda: Calendar("year"), "a unit of the calendar is day, week or month, not 'year'"),  # type: ignore[arg-type]
        (lambda: window_length("0s"), "a window cannot be 0s long: expected at least 1s"),
    ],
)
def test_other_lengths_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()
