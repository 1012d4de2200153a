"""The loads that benchmarks send one after the other: of few rows, or wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakehouse.dev.samples.loads import Load

_NINETY_DAYS_S = 90 * 86_400.0
_WIDE: Mapping[str, tuple[Mapping[str, float], float]] = {
    "metrics": ({"services": 1}, 60 / 5),  # of five metrics each
    "calls": ({"alone": 0.75}, 0),
    "sales": ({}, 0),
    "transactions": ({"users": 5}, 300 / 5),
}
"""The shape of a stream's events, and the length of a window by the number of keys, in seconds; 0 without."""


def in_turn(stream: str, sizes: Sequence[int], *, wide: bool = False) -> list[Load]:
    """Return loads of so many events each, with seeds from 1 on.

    Wide ones make about two rows of gold for three events. They lie over weeks or months, so few rows grow,
    and each load begins where the one before it ends, because events that come a week late are dead letters.
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
