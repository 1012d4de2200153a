"""Simulated crashes: a write fails before or after it takes effect, while the process continues."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime
from typing import Any
from unittest.mock import patch

from lakehouse.engine.layers import gold, silver
from lakehouse.engine.layers.step import Batch, BatchResult, Permitted, Step
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream


class CrashError(Exception):
    """A simulated process crash."""


def crash_at(
    write: Callable[..., Any], number: int, *, after: bool, for_good: bool = False
) -> Callable[..., Any]:
    """Wrap a write function so that the call with this number, counted from 1, raises CrashError.

    With `after`, the call takes effect before it fails. With `for_good`, all later calls fail too, as if the
    process had ended.
    """
    calls = 0

    def crashing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < number or (calls > number and not for_good):
            return write(*arguments, **named)
        if after and calls == number:
            write(*arguments, **named)
        raise CrashError

    return crashing


def write_batch(step: Step, batch: Batch, *, now: datetime) -> BatchResult:
    """Have a step write a planned micro-batch."""
    with step.write(batch, now) as passed:
        return passed.result


def take_next(step: Step, *, now: datetime) -> BatchResult | None:
    """Have a step plan and write its next micro-batch. Return None if there is none."""
    batch = step.plan({})
    return None if batch is None else write_batch(step, batch, now=now)


def crash_and_go_on(lake: Lake, stream: Stream, max_bytes: int, now: datetime) -> dict[str, int]:
    """Have silver and gold process their backlog despite crashes. Return each step's number of crashes.

    Every step crashes once in each micro-batch, and is then restarted. It cycles through four crash points:
    before and after the first write, then before and after the second write.
    """
    crashes: dict[str, int] = {}
    cleaning = silver.steps(lake, stream, max_bytes, Permitted())
    merging = gold.steps(lake, stream, max_bytes)
    for makers, write in ((cleaning, "append"), (merging, "upsert")):
        for maker in makers:
            crashes[maker.name] = 0
            for number, after in itertools.cycle(itertools.product((1, 2), (False, True))):
                with patch.object(tables, write, crash_at(getattr(tables, write), number, after=after)):
                    try:
                        if take_next(maker.make(), now=now) is None:
                            break
                    except CrashError:
                        crashes[maker.name] += 1
    return crashes
