"""Moments computed at the ends of the calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakehouse.storage.tables import shifted

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
TICK = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("moment", "by", "expected"),
    [
        (FIRST, -TICK, FIRST),
        (FIRST + TICK, -TICK, FIRST),
        (FIRST, timedelta(days=-36_525), FIRST),
        (LAST, TICK, LAST),
        (LAST, timedelta(days=36_525), LAST),
        (FIRST, LAST - FIRST, LAST),
        (datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=-1), datetime(2025, 12, 31, 23, tzinfo=UTC)),
    ],
)
def test_a_moment_is_shifted_no_further_than_the_calendar_goes(
    moment: datetime, by: timedelta, expected: datetime
) -> None:
    assert shifted(moment, by) == expected
