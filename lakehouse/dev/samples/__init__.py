"""Sample events for demos, tests and benchmarks: the type of a sample, and event times for a run.

Each stream has a generator in a separate module. A generator is a pure function of its arguments: it never
reads the clock. The caller passes a seed, and event times from a function in this module.
"""

from __future__ import annotations

import time
from itertools import count as counting
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Sample(NamedTuple):
    """A Kafka record to send. Its kind tells tests what the pipeline must do with it.

    `source` is the index of the record's topic among the stream's topics. `timestamp_ms` is for records whose
    only event time is Kafka's timestamp; 0 means the time of sending. If `partition` is -1, the key
    determines the partition.
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
    """Yield the times in epoch milliseconds at which events are due, at `rate` events per second.

    The clock is read only once, at the first `next`, so that the schedule starts with the first event. Event
    n (from 0) is due (n + 1) / rate seconds later, as in `produce`.
    """
    start_ms = clock() * 1000
    step_ms = 1000 / rate
    for n in counting(1):
        yield int(start_ms + n * step_ms)
