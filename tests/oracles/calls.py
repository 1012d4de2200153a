"""call_records: events of two users that follow each other closely form a call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracles.judging import SECOND_US, Event

SIDES = ("analytics", "metrics")


@dataclass(frozen=True)
class CallEvent(Event):
    """A clean record of call_analytics or call_metrics, with its side's payload."""

    user1: str
    user2: str
    analytics: str | None = None
    metrics: str | None = None
    side: str = SIDES[0]


def call_records(
    events: Iterable[CallEvent], now_us: int, *, gap_s: int = 60, grace_s: int = 180
) -> list[dict[str, Any]]:
    """Return the rows of gold.call_records at `now_us`, from the events of both sides.

    An event at most `gap_s` after its neighbour belongs to the same call. A call closes `gap_s`, `grace_s`
    and a second after its last event.
    """
    pairs: dict[tuple[str, str], list[CallEvent]] = defaultdict(list)
    for event in events:
        pairs[event.user1, event.user2].append(event)
    return [
        _row(call, now_us, (gap_s + grace_s + 1) * SECOND_US)
        for pair in pairs.values()
        for call in _calls(pair, gap_s * SECOND_US)
    ]


def _calls(events: Iterable[CallEvent], gap_us: int) -> Iterator[list[CallEvent]]:
    call: list[CallEvent] = []
    for event in sorted(events, key=lambda event: (event.event_time_us, event.partition, event.offset)):
        if call and event.event_time_us - call[-1].event_time_us > gap_us:
            yield call
            call = []
        call.append(event)
    if call:
        yield call


def _row(call: Sequence[CallEvent], now_us: int, patience_us: int) -> dict[str, Any]:
    first, last_us = call[0], call[-1].event_time_us
    due_us = last_us + patience_us
    closed = now_us >= due_us
    return {
        "user1": first.user1,
        "user2": first.user2,
        "ts": first.event_time_us,
        **{side: _earliest(call, side) for side in SIDES},
        **{f"{side}_events": sum(event.side == side for event in call) for side in SIDES},
        "last_event_time": last_us,
        "status": "closed" if closed else "open",
        "closed_at": due_us if closed else None,
    }


def _earliest(call: Iterable[CallEvent], side: str) -> str | None:
    payloads = (getattr(event, side) for event in call if event.side == side)
    return next((payload for payload in payloads if payload is not None), None)
