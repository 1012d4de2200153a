"""Rows read from tables, file by file and each file once: open dead letters, and gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.quality.results import GateState, last_of
from lakehouse.records.dead_letters import OPEN
from lakehouse.telemetry.delta_log import Log
from lakehouse.telemetry.values import StreamGate

FILES_A_LOOK = 200
"""Limits the first look at a table of many files to a moment."""


class OpenLetters:
    """Counts open dead letters by stream."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._counts: dict[str, Counter[str]] = {}
        self.by_stream: Mapping[str, int] | None = None

    def refresh(self) -> None:
        """Read the files that have come since; `by_stream` is null until all of them have been read."""
        self.by_stream = None
        if not self._log.refresh():
            self._counts, self.by_stream = {}, {}
            return
        self._counts = {path: self._counts[path] for path in self._log.files if path in self._counts}
        missing = [path for path in self._log.files if path not in self._counts]
        for path in missing[:FILES_A_LOOK]:
            try:
                self._counts[path] = _open_letters(file_in(self._log, path))
            except (OSError, pa.ArrowException):  # rewritten, and removed since the log was read, or damaged
                self.by_stream = None
                return
        # If a replay rewrites letters while they are counted, the sum is the old or the new one.
        complete = len(missing) <= FILES_A_LOOK
        self.by_stream = dict(sum(self._counts.values(), Counter())) if complete else None


def _open_letters(path: Path) -> Counter[str]:
    rows = pq.read_table(path, columns=["stream", "status"])
    streams, statuses = rows["stream"].to_pylist(), rows["status"].to_pylist()
    return Counter(stream for stream, status in zip(streams, statuses, strict=True) if status == OPEN)


class Gates:
    """The last state of each stream's gate."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: set[str] = set()
        self._last: dict[str, GateState] = {}

    def of(self, stream: str) -> StreamGate | None:
        """Return a stream's gate, null if none has ever been checked."""
        last = self._last.get(stream)
        return None if last is None else StreamGate(last.is_open, last.changed_at, last.reasons)

    def refresh(self) -> None:
        """Read the changes since the last look."""
        if not self._log.refresh():
            self._read, self._last = set(), {}
            return
        for path in [path for path in self._log.files if path not in self._read]:
            try:
                rows = pq.read_table(file_in(self._log, path)).to_pylist()
            except (OSError, pa.ArrowException):
                continue
            self._read.add(path)
            changes = (
                GateState(row["stream"], utc(row["changed_at"]), row["is_open"], tuple(row["reasons"] or ()))
                for row in rows
            )
            self._last = last_of([*self._last.values(), *changes])


def file_in(log: Log, path: str) -> Path:
    """Return a file's path from its path in the table's log."""
    return log.path / unquote(path)


def utc(moment: datetime) -> datetime:
    """Return a moment from a file with its time zone, UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
