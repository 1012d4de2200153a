"""Requests to stop a run, made by a signal or by another thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from pyspark.sql import SparkSession

from lakehouse.storage.spark import internals


@dataclass
class Stop:
    """A request to stop after the current micro-batch, made by a signal or by another thread.

    If `also` is given, a request made to it counts as well.
    """

    event: threading.Event = field(default_factory=threading.Event)
    also: Stop | None = None

    def request(self) -> None:
        """Ask the run to stop."""
        self.event.set()

    @property
    def requested(self) -> bool:
        """Whether the run has been asked to stop."""
        return self.event.is_set() or (self.also is not None and self.also.requested)


@contextlib.contextmanager
def stopping_here() -> Iterator[Stop]:
    """Turn SIGTERM or Ctrl-C in this process into a request to stop."""
    stop = Stop()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.request()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stopping_on_signals(spark: SparkSession) -> Iterator[Stop]:
    """Turn SIGTERM or Ctrl-C, in this process or its JVM, into a request to stop."""
    # Under spark-submit, the JVM receives the signals.
    with stopping_here() as stop, internals.on_signals(spark, ("TERM", "INT"), stop.request):
        yield stop
