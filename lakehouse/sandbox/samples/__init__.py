"""Sample events for demos, tests and benchmarks: what one is, and at which moments a run of them happens.

A generator (one module per stream) is a pure function of its arguments: it gets the event times from
here and a seed from the caller, and reads no clock of its own.
"""

from __future__ import annotations

import time
from itertools import count as counting
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Sample(NamedTuple):
    """A Kafka record to send, and why it is there, so that a test knows what must become of it.

    `source` is the index of its topic among the stream's. `timestamp_ms` is for a record that has no event
    time but Kafka's; 0 leaves that to the moment of sending. A `partition` of -1 leaves that to the key.
    """

    key: bytes | None
    value: bytes | None
    kind: str
    source: int = 0
    timestamp_ms: int = 0
    partition: int = -1
    headers: list[tuple[str, str | bytes | None]] | None = None


def spread_times(count: int, *, end_ms: int, span_s: float) -> Iterator[int]:
    """Yield `count` times in epoch milliseconds, evenly over the last `span_s` seconds up to `end_ms`."""
    span_ms = round(span_s * 1000)
    start_ms = end_ms - span_ms
    return (start_ms + span_ms * n // count for n in range(1, count + 1))


def paced_times(rate: float, clock: Callable[[], float] = time.time) -> Iterator[int]:
    """Yield the wall-clock times, in epoch milliseconds, at which events at `rate` a second are due.

    The clock is read once, when the first time is asked for, so a run starts when it is first drawn
    from. Event n (from 0) is due (n + 1) / rate seconds later: the same schedule `produce` keeps.
    """
    start_ms = clock() * 1000
    step_ms = 1000 / rate
    for n in counting(1):
        yield int(start_ms + n * step_ms)
