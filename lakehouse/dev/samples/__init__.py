"""Sample events for demos, tests and benchmarks: the type of a sample, and the event times of a run.

A generator (one module per stream) is a pure function of its arguments: it gets event times from this module
and a seed from the caller, and never reads the clock.
"""

from __future__ import annotations

import time
from itertools import count as counting
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Sample(NamedTuple):
    """A Kafka record to send, with its kind, which tells tests what result to expect.

    `source` is the index of its topic among the stream's topics. `timestamp_ms` is for records whose only
    event time is Kafka's timestamp; 0 means the sending time. If `partition` is -1, the key determines it.
    """

    key: bytes | None
    value: bytes | None
    kind: str
    source: int = 0
    timestamp_ms: int = 0
    partition: int = -1
    headers: list[tuple[str, str | bytes | None]] | None = None


def spread_times(count: int, *, end_ms: int, span_s: float) -> Iterator[int]:
    """Yield `count` times in epoch milliseconds, evenly spaced over the `span_s` seconds up to `end_ms`."""
    span_ms = round(span_s * 1000)
    start_ms = end_ms - span_ms
    return (start_ms + span_ms * n // count for n in range(1, count + 1))


def paced_times(rate: float, clock: Callable[[], float] = time.time) -> Iterator[int]:
    """Yield the wall-clock times, in epoch milliseconds, when events at `rate` per second are due.

    The clock is read once, at the first `next`, so that the schedule starts with the first event. Event n
    (from 0) is due (n + 1) / rate seconds later, as in `produce`.
    """
    start_ms = clock() * 1000
    step_ms = 1000 / rate
    for n in counting(1):
        yield int(start_ms + n * step_ms)
