"""Read small tables (open dead letters, gates and events) incrementally. Each file is read once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.common.events import Kind
from lakehouse.engine.records.dead_letters import OPEN
from lakehouse.operations.quality.results import GateState, last_of
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.operations.telemetry.values import Audit, Refused, StreamGate

_Rows = TypeVar("_Rows")
FILES_A_LOOK = 200
"""The maximum number of new files read per refresh, so that the first refresh is fast."""


class OpenLetters:
    """The number of open dead letters by stream."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._counts: dict[str, Counter[str]] = {}
        self.by_stream: Mapping[str, int] | None = None

    def refresh(self) -> None:
        """Read new files. `by_stream` is None until all files have been read."""
        self.by_stream = None
        if not self._log.refresh():
            self._counts, self.by_stream = {}, {}
            return
        self._counts = {path: self._counts[path] for path in self._log.files if path in self._counts}
        missing = [path for path in self._log.files if path not in self._counts]
        for path, found in read_each(self._log, missing[:FILES_A_LOOK], _open_letters):
            self._counts[path] = found
        # If a replay rewrites dead letters in the meantime, the result is either the old sum or the new sum.
        complete = self._counts.keys() == self._log.files.keys()
        self.by_stream = dict(sum(self._counts.values(), Counter())) if complete else None


def _open_letters(source: pa.NativeFile) -> Counter[str]:
    rows = pq.read_table(source, columns=["stream", "status"])
    streams, statuses = rows["stream"].to_pylist(), rows["status"].to_pylist()
    return Counter(stream for stream, status in zip(streams, statuses, strict=True) if status == OPEN)


class Gates:
    """The current state of each stream's gate."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: set[str] = set()
        self._last: dict[str, GateState] = {}

    def of(self, stream: str) -> StreamGate | None:
        """Return a stream's gate, or None if the gate has never been checked."""
        last = self._last.get(stream)
        return None if last is None else StreamGate(last.is_open, last.changed_at, last.reasons)

    def refresh(self) -> None:
        """Read the gate changes since the last refresh."""
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
    """Yield the result of `read` for each of a table's files. Skip unreadable or removed files."""

    def read_one(path: str) -> _Rows | None:
        try:
            with log.open(path) as source:
                return read(source)
        except (OSError, pa.ArrowException):  # the file was compacted and removed, or is damaged
            return None

    for path, found in zip(paths, log.each(read_one, paths), strict=True):
        if found is not None:
            yield path, found


def utc(moment: datetime) -> datetime:
    """Return a time in UTC. A time without a time zone is already in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_COLUMNS = ["at", "kind", "stream", "details"]


class AuditsAndStops:
    """The latest audits, stops and refusals in ops.events. Each file is read once, newest first.

    `unread` is the number of files that have not been read, or could not be read.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: set[str] = set()
        self._audits: dict[str, Audit] = {}
        self._stops: dict[tuple[str, str], datetime] = {}
        self._refused: dict[tuple[str, str], Refused] = {}
        self.unread = 0

    def audit_of(self, stream: str) -> Audit | None:
        """Return a stream's latest audit, or None if none was found."""
        return self._audits.get(stream)

    def stops_of(self, stream: str) -> Mapping[str, datetime]:
        """Return the time (UTC) when each of a stream's layers last stopped.

        A killed process records no stop.
        """
        return {layer: at for (name, layer), at in self._stops.items() if name == stream}

    def refused_of(self, stream: str) -> tuple[Refused, ...]:
        """Return the latest refusal report for each of a stream's silver tables, ordered by table."""
        return tuple(one for (name, _), one in sorted(self._refused.items()) if name == stream)

    def refresh(self) -> None:
        """Read the events since the last refresh."""
        if not self._log.refresh():
            self._read, self._audits, self._stops, self._refused = set(), {}, {}, {}
            self.unread = 0
            return
        missing = [path for path in self._log.files if path not in self._read]
        missing.sort(key=lambda path: self._log.files[path].modified_ms, reverse=True)
        # If a file is compacted in the meantime, its events are in a new file. The next refresh reads that
        # file.
        for path, rows in read_each(self._log, missing[:FILES_A_LOOK], _rows):
            self._read.add(path)
            for row in rows:
                if row["stream"] is not None and row["details"] is not None:
                    self._take(row["kind"], row["stream"], utc(row["at"]), row["details"])
        self.unread = sum(path not in self._read for path in self._log.files)

    def _take(self, kind: str, stream: str, at: datetime, details: str) -> None:
        if kind == Kind.AUDIT:
            known, found = self._audits.get(stream), _object(details)
            if "clean" in found and (known is None or known.at < at):
                self._audits[stream] = Audit(at, bool(found["clean"]))
        elif kind == Kind.STOP:
            for layer in _object(details).get("layers", ()):
                self._stops[stream, layer] = max(at, self._stops.get((stream, layer), at))
        elif kind == Kind.REFUSED and (refused := _refused(at, _object(details))) is not None:
            last = self._refused.get((stream, refused.table), refused)
            self._refused[stream, refused.table] = max(last, refused, key=lambda one: one.at)


def _rows(source: pa.NativeFile) -> list[dict[str, Any]]:
    with pq.ParquetFile(source, pre_buffer=False) as file:
        rows: list[dict[str, Any]] = file.read(columns=_COLUMNS, use_threads=False).to_pylist()
    return rows


def _refused(at: datetime, details: dict[str, Any]) -> Refused | None:
    """Return the refusals that an event's details describe, or None if they describe something else."""
    try:
        causes = tuple(
            f"{one['count']:,} {one['rule']}" + (f" of {one['column']}" if one["column"] else "")
            for one in details["causes"]
        )
        counts = int(details["judged"]), int(details["refused"]), float(details["limit"])
        return Refused(str(details["table"]), at, *counts, bool(details["over"]), causes)
    except (LookupError, TypeError, ValueError):
        return None


def _object(text: str) -> dict[str, Any]:
    """Return an event's details, or an empty mapping if they are not a JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
