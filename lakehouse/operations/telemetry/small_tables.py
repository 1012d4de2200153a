"""Incremental readers of small tables, which read each file once: open dead letters, and gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.engine.records.dead_letters import OPEN
from lakehouse.operations.quality.results import GateState, last_of
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.operations.telemetry.values import StreamGate

_Rows = TypeVar("_Rows")
FILES_A_LOOK = 200
"""The greatest number of new files read at a refresh, so that the first one is fast."""


class OpenLetters:
    """Counts open dead letters by stream."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._counts: dict[str, Counter[str]] = {}
        self.by_stream: Mapping[str, int] | None = None

    def refresh(self) -> None:
        """Read new files; `by_stream` is null until all files have been read."""
        self.by_stream = None
        if not self._log.refresh():
            self._counts, self.by_stream = {}, {}
            return
        self._counts = {path: self._counts[path] for path in self._log.files if path in self._counts}
        missing = [path for path in self._log.files if path not in self._counts]
        for path, found in read_each(self._log, missing[:FILES_A_LOOK], _open_letters):
            self._counts[path] = found
        # If a replay rewrites letters meanwhile, the sum is either the old or the new one.
        complete = self._counts.keys() == self._log.files.keys()
        self.by_stream = dict(sum(self._counts.values(), Counter())) if complete else None


def _open_letters(source: pa.NativeFile) -> Counter[str]:
    rows = pq.read_table(source, columns=["stream", "status"])
    streams, statuses = rows["stream"].to_pylist(), rows["status"].to_pylist()
    return Counter(stream for stream, status in zip(streams, statuses, strict=True) if status == OPEN)


class Gates:
    """The last state of each stream's gate."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: set[str] = set()
        self._last: dict[str, GateState] = {}

    def of(self, stream: str) -> StreamGate | None:
        """Return a stream's gate, null if it has never been checked."""
        last = self._last.get(stream)
        return None if last is None else StreamGate(last.is_open, last.changed_at, last.reasons)

    def refresh(self) -> None:
        """Read the changes since the last refresh."""
        if not self._log.refresh():
            self._read, self._last = set(), {}
            return
        missing = [path for path in self._log.files if path not in self._read]
        for path, rows in read_each(self._log, missing, lambda source: pq.read_table(source).to_pylist()):
            self._read.add(path)
            changes = (
                GateState(row["stream"], utc(row["changed_at"]), row["is_open"], tuple(row["reasons"] or ()))
                for row in rows
            )
            self._last = last_of([*self._last.values(), *changes])


def read_each(
    log: Log, paths: Sequence[str], read: Callable[[pa.NativeFile], _Rows]
) -> Iterator[tuple[str, _Rows]]:
    """Yield the result of `read` for each of these files of a table, except unreadable or removed ones."""

    def read_one(path: str) -> _Rows | None:
        try:
            with log.open(path) as source:
                return read(source)
        except (OSError, pa.ArrowException):  # compacted and removed, or damaged
            return None

    for path, found in zip(paths, log.each(read_one, paths), strict=True):
        if found is not None:
            yield path, found


def utc(moment: datetime) -> datetime:
    """Return a time in UTC; one without a time zone is in UTC already."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
