"""Keep a failing sink from delaying an export's micro-batches, and measure the time spent on each store.

After a failure, a sink counts as behind until it is filled again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from lakehouse.common.errors import SinkTroubleError
from lakehouse.sinks.change import Change
from lakehouse.sinks.port import Sending, Sink
from lakehouse.storage.tables import Position

_T = TypeVar("_T")


class Stopwatch:
    """A stopwatch for the time spent on one store while rows are sent to several. Not thread-safe."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time spent in the block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - started

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items, and count the time taken to produce each of them."""
        remaining = iter(items)
        while True:
            with self.running():
                try:
                    item = next(remaining)
                except StopIteration:
                    return
            yield item


class Following:
    """A sink of an export. While the sink is behind, it receives no micro-batches."""

    def __init__(self, sink: Sink, *, is_behind: bool) -> None:
        self.name = sink.name
        self.is_behind = is_behind
        self._sink = sink
        self._watch = Stopwatch()
        self._lacks_rows = False  # remembered, because the sink checks only at intervals

    @property
    def seconds(self) -> float:
        """The time spent on writing the last micro-batch, in seconds."""
        return self._watch.seconds

    def begin(self, sending: Sending) -> None:
        """Begin a micro-batch."""
        self._watch = Stopwatch()
        with self._trying():
            if not self.is_behind:
                self._sink.begin(sending)

    def write(self, changes: Sequence[Change]) -> None:
        """Write some rows of the micro-batch."""
        with self._trying():
            if not self.is_behind:
                self._sink.write(changes)

    def end(self) -> int:
        """End the micro-batch, and return how many rows changed in the store."""
        rows = 0
        with self._trying():
            if not self.is_behind:
                rows = self._sink.end()
        return rows

    def is_due(self) -> bool:
        """Return whether the sink must be filled."""
        self._lacks_rows = self._lacks_rows or self._sink.lacks_rows()
        return self.is_behind or self._lacks_rows

    def fill(self, reached: Position | None, now: datetime) -> int:
        """Fill the sink, and return how many rows were written. Raises SinkTroubleError if filling fails."""
        self._sink.require()
        rows = self._sink.fill(reached, now)
        self.is_behind = self._lacks_rows = False
        return rows

    def close(self) -> None:
        """Close the sink's connections."""
        self._sink.close()

    @contextmanager
    def _trying(self) -> Iterator[None]:
        with self._watch.running():
            try:
                yield
            except SinkTroubleError:  # the periodic fill hits the same error and reports it
                self.is_behind = True
