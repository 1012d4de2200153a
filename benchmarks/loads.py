"""Loads that benchmarks send one after the other, with few rows or with many ("wide")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakehouse.dev.samples.loads import Load

_NINETY_DAYS_S = 90 * 86_400.0
_WIDE: Mapping[str, tuple[Mapping[str, float], float]] = {
    "metrics": ({"services": 1}, 60 / 5),  # with five metrics each
    "calls": ({"alone": 0.75}, 0),
    "sales": ({}, 0),
    "transactions": ({"users": 5}, 300 / 5),
}
"""For each stream, the shape of its events, and its window length divided by the number of keys, in seconds.

The length is 0 for a stream without windows.
"""


def in_turn(stream: str, sizes: Sequence[int], *, wide: bool = False) -> list[Load]:
    """Return loads with these numbers of events, and with seeds from 1 on.

    A wide load creates about two gold rows for three events. Its events are spread over weeks or months, so
    few rows grow. Each load begins where the previous load ends, because events that arrive a week late
    become dead letters.
    """
    loads = [_wide(stream, events) if wide else Load(stream, events) for events in sizes]
    return [
        replace(load, seed=number + 1, behind_s=sum(later.span_s for later in loads[number + 1 :] if wide))
        for number, load in enumerate(loads)
    ]


def _wide(stream: str, events: int) -> Load:
    shape, seconds_by_key = _WIDE[stream]
    if stream == "sales":
        shape = {"products": max(1, events // 1.5)}
    return Load(stream, events, span_s=events / 1.5 * seconds_by_key or _NINETY_DAYS_S, shape=shape)
