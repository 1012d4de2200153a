"""Record the history of each stream in ops.history, and turn it into a series of intervals.

The oldest live process of a stream records a sample soon after its start, every five minutes, and at its end.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakehouse.common.background import beside
from lakehouse.engine.ops_tables.history import HISTORY, Sample, append
from lakehouse.operations.telemetry.health import waiting_of
from lakehouse.operations.telemetry.values import Observation, PartitionLag, StreamState
from lakehouse.operations.telemetry.words import Word
from lakehouse.storage.spark.query_errors import what_of
from lakehouse.storage.tables.specs import EPOCH

SLOT = timedelta(minutes=5)
_LOOK_EVERY_S = 30.0
_PATIENCE_S = 20.0
_ORDER: tuple[str, ...] = tuple(Word)


@dataclass(frozen=True)
class Interval:
    """The history of a stream in one interval. None means unknown, for example because nothing was recorded.

    word            the worst health of the stream
    arrived_per_s   how many records per second arrived in the topics
    landed_per_s    how many records per second landed in bronze
    waited_s        the longest time that a record waited, in seconds
    open_letters    how many dead letters were open at the end of the interval
    """

    word: str | None = None
    arrived_per_s: float | None = None
    landed_per_s: float | None = None
    waited_s: float | None = None
    open_letters: int | None = None


def sample_of(state: StreamState, at: datetime) -> Sample:
    """Return a sample of a stream's state, which was observed at `at` (UTC)."""
    longest = waiting_of(state)
    return Sample(
        state.name,
        at,
        state.health.word,
        _total(state.partitions, "end"),
        _total(state.partitions, "position"),
        None if longest is None else longest.seconds,
        state.open_letters,
    )


class Slots:
    """A collector of samples: one for each stream and slot of five minutes.

    A stream is sampled if this process (`host`, `pid`) is its oldest live process, or if it has none.
    """

    def __init__(self, host: str, pid: int) -> None:
        self._me = host, pid
        self._slot: int | None = None
        self._samples: dict[str, Sample] = {}

    def take(self, seen: Observation) -> list[Sample]:
        """Add an observation. If it is the first in a new slot, return the samples of the previous slot."""
        over = self.end() if self._slot != _slot(seen.at) else []
        self._slot = _slot(seen.at)
        for state in seen.streams:
            if [(run.host, run.pid) for run in state.runs[:1]] in ([], [self._me]):
                known, new = self._samples.get(state.name), sample_of(state, seen.at)
                self._samples[state.name] = new if known is None else _worse(known, new)
        return over

    def end(self) -> list[Sample]:
        """End the current slot, and return its samples."""
        samples = list(self._samples.values())
        self._slot, self._samples = None, {}
        return samples


@contextmanager
def recording(
    lake: str,
    observe: Callable[[], Observation],
    on_notice: Callable[[str], None],
    *,
    look_every_s: float = _LOOK_EVERY_S,
) -> Iterator[None]:
    """Record the streams' history during the block: after the first look, after each slot, and at the end.

    A failure is reported once, and its samples are lost.
    """

    def keep(ended: threading.Event) -> None:
        slots, told, is_first = Slots(socket.gethostname(), os.getpid()), False, True
        while True:
            is_over = ended.wait(look_every_s)
            try:
                samples = slots.take(observe())
                samples += slots.end() if is_over or is_first else []
                if samples:
                    append(lake, samples)
                told = is_first = False
            except Exception as error:  # noqa: BLE001 - deltalake and file systems raise many kinds of errors
                if not told:
                    on_notice(f"{HISTORY.qualified_name} cannot be written: {what_of(error)}")
                told = True
            if is_over:
                return

    with beside("history", keep, patience_s=_PATIENCE_S):
        yield


def intervals(past: Sequence[Sample], start: datetime, step: timedelta, number: int) -> list[Interval]:
    """Return the history of a stream as `number` intervals of length `step`, starting at `start` (UTC).

    Rates are computed between samples that are at most two slots apart. The last sample before `start` is
    used only for the first rate.
    """
    samples = sorted(past, key=lambda one: one.at)
    found = [list[int]() for _ in range(number)]
    for index, one in enumerate(samples):
        place = (one.at - start) // step
        if 0 <= place < number:
            found[place].append(index)
    return [_interval(samples, each) for each in found]


def _interval(samples: Sequence[Sample], indices: Sequence[int]) -> Interval:
    if not indices:
        return Interval()
    within = [samples[index] for index in indices]
    pairs = [(samples[index - 1], samples[index]) for index in indices if index]
    near = [(one, other) for one, other in pairs if other.at - one.at <= 2 * SLOT]
    return Interval(
        _worst_word(within),
        _rate([(one.at, one.arrived, other.at, other.arrived) for one, other in near]),
        _rate([(one.at, one.landed, other.at, other.landed) for one, other in near]),
        _longest_wait_s(within),
        within[-1].open_letters,
    )


def _rate(pairs: Sequence[tuple[datetime, int | None, datetime, int | None]]) -> float | None:
    """Return the increase per second over all pairs, except where a recreated topic reduced the count."""
    passed_s, grown = 0.0, 0
    for since, before, until, after in pairs:
        if before is not None and after is not None and after >= before:
            passed_s += (until - since).total_seconds()
            grown += after - before
    return grown / passed_s if passed_s else None


def _worse(*samples: Sample) -> Sample:
    """Return the last sample with the worst word and the longest wait of all."""
    return replace(samples[-1], word=_worst_word(samples), waited_s=_longest_wait_s(samples))


def _worst_word(samples: Sequence[Sample]) -> str:
    return max((one.word for one in samples), key=_badness)


def _longest_wait_s(samples: Sequence[Sample]) -> float | None:
    return max((one.waited_s for one in samples if one.waited_s is not None), default=None)


def _badness(word: str) -> int:
    """Return the rank of a health word: the worst has the highest, and words from other versions have -1."""
    return _ORDER.index(word) if word in _ORDER else -1


def _slot(at: datetime) -> int:
    return (at - EPOCH) // SLOT


def _total(lags: Sequence[PartitionLag], what: str) -> int | None:
    values = [getattr(one, what) for one in lags]
    return None if not values or None in values else sum(values)
