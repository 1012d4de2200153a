"""Rounds of upkeep in a live run: how long they wait for a quiet moment."""

from __future__ import annotations

import time
from contextlib import nullcontext
from datetime import datetime, timedelta

from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.maintenance.rounds import Rounds
from lakehouse.operations.maintenance.upkeep import tasks
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.support.pipeline import STREAM, await_


def test_tables_of_a_run_that_is_never_quiet_wait_a_quarter_of_the_interval_together(
    lake: Lake, lake_settings: Settings
) -> None:
    todo, looked, notices = tasks([STREAM], lake_settings), list[float](), list[str]()

    def clock() -> datetime:
        looked.append(time.monotonic())
        return utc_now()

    every = timedelta(seconds=1)
    rounds = Rounds(lake, todo, lake_settings, every=every, clock=clock, on_notice=notices.append)
    with rounds.beside(nullcontext, lambda: False):
        await_(lambda: len(looked) >= len(todo))

    assert len(todo) >= 8
    assert looked[len(todo) - 1] - looked[0] < 4
    assert notices == []
