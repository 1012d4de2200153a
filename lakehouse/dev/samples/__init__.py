"""Sample events for demos, tests and benchmarks: the type of a sample, and the event times of a run.

A generator (one module per stream) is a pure function of its arguments: it takes event times from here and a
seed from the caller, and does not read the clock.
"""

from __future__ import annotations

import time
from itertools import count as counting
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Sample(NamedTuple):
    """A Kafka record to send, with its kind, so that tests know the expected result.

    `source` is the index of its topic among the stream's. `timestamp_ms` is for records whose only event time
    is Kafka's; 0 means the time of sending. A `partition` of -1 means that the key decides.
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
    """Yield the wall-clock times, in epoch milliseconds, at which events at `rate` per second are due.

    The clock is read once, at the first `next`, so that a run starts with its first event. Event n (from 0)
    is due (n + 1) / rate seconds later, the same schedule as in `produce`.
    """
    start_ms = clock() * 1000
    step_ms = 1000 / rate
    for n in counting(1):
        yield int(start_ms + n * step_ms)
