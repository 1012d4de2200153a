"""Landing times never go back, whatever the clock says: the last one recorded in the table decides."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from lakehouse.engine.layers.bronze import landing_of
from lakehouse.storage.tables import Move
from tests.support.pipeline import micros, utc

NOON = utc("2026-11-28T12:00:00.000007")
NAME = "bronze.payments"


@pytest.mark.parametrize(
    ("landed", "now", "lands"),
    [
        pytest.param(None, NOON, NOON, id="the first one"),
        pytest.param(NOON, NOON + timedelta(seconds=1), NOON + timedelta(seconds=1), id="the clock went on"),
        pytest.param(NOON, NOON, NOON + timedelta(microseconds=1), id="the clock stood still"),
        pytest.param(NOON, NOON - timedelta(hours=1), NOON + timedelta(microseconds=1), id="it was set back"),
    ],
)
def test_a_landing_is_the_clock_s_or_a_microsecond_after_the_last_one(
    landed: datetime | None, now: datetime, lands: datetime
) -> None:
    before = None if landed is None else micros(landed)

    assert landing_of(NAME, before, now) == Move(
        "bronze.payments landed",
        before,
        micros(lands),
    )
