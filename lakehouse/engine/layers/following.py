"""Keep a failing sink from delaying an export's micro-batches, and measure the time spent on each store.

After a failure, a sink counts as behind until it is filled again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from lakehouse.common.errors import SinkTroubleError, StoreWord
from lakehouse.engine.progress.sent import Lacking
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
    """A sink of an export. While the sink is behind, it receives no micro-batches.

    `lacking` says why the sink lacks rows, or is None if it is not known to lack any.
    """

    def __init__(self, sink: Sink, *, lacking: Lacking | None) -> None:
        self.name = sink.name
        self.lacking = lacking
        self.is_behind = lacking is not None
        self._sink = sink
        self._watch = Stopwatch()
        self._lacks_rows = False  # remembered, because the sink checks only at intervals
        self._now = datetime.now(UTC)

    @property
    def seconds(self) -> float:
        """The time spent on writing the last micro-batch, in seconds."""
        return self._watch.seconds

    def begin(self, sending: Sending) -> None:
        """Begin a micro-batch."""
        self._watch, self._now = Stopwatch(), sending.now
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

    def require(self, now: datetime) -> None:
        """Raise SinkTroubleError unless the sink can be reached. From then on, it counts as being filled."""
        self._now = now
        with self._noting():
            self._sink.require()
        if self.lacking is None or self.lacking.word is StoreWord.AWAY:
            self.lacking = Lacking(StoreWord.BEHIND, "it is being filled with the rows that it lacks", now)

    def fill(self, reached: Position | None) -> int:
        """Fill the sink, and return how many rows were written. Raises SinkTroubleError if filling fails."""
        with self._noting():
            rows = self._sink.fill(reached, self._now)
        self.lacking, self.is_behind, self._lacks_rows = None, False, False
        return rows

    def close(self) -> None:
        """Close the sink's connections."""
        self._sink.close()

    @contextmanager
    def _trying(self) -> Iterator[None]:
        with self._watch.running():
            try:
                with self._noting():
                    yield
            except SinkTroubleError:  # the periodic fill hits the same error and reports it
                self.is_behind = True

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except SinkTroubleError as error:
            self.lacking = Lacking.of(error, self.lacking, self._now)
            raise
