"""A Delta table's log, read without a JVM, each commit once.

A look costs one check for a file while nothing is committed, and one file per new commit. The first look
begins at the log's newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.tables.entries import LogEntry, bounds_of, committed_ms_of, entry_of, rows_of, total
from lakehouse.tables.specs import EPOCH


@dataclass(frozen=True)
class FileFacts:
    """A data file: its rows (null without statistics), bytes, time of writing, and newest time."""

    records: int | None
    size_bytes: int
    modified_ms: int
    newest: datetime | None


@dataclass(frozen=True)
class CommitFacts:
    """What a commit has done to the rows of a table.

    `added` are the rows of each file with new rows, in the order of the log, null without statistics.
    `rewrites` says that existing rows were removed or changed. `feed` is its part of the change feed: the
    paths of its own files, or the rows of the files that it adds and removes.
    """

    version: int
    at_ms: int | None
    added: tuple[int | None, ...]
    rewrites: bool
    feed: tuple[str | int | None, ...]


class Log:
    """The log of the table at a path, as of the last `refresh`.

    `version` is -1 if there is no table. `time_column` names a timestamp with statistics for each file.
    """

    def __init__(self, path: Path, time_column: str | None = None) -> None:
        self.path = path
        self._directory = path / "_delta_log"
        self._time_column = time_column
        self._forget()

    def _forget(self) -> None:
        self.version = -1
        self.table_id: str | None = None
        self.properties: Mapping[str, str] = {}
        self.committed_ms: int | None = None
        self.files: dict[str, FileFacts] = {}
        self.transactions: dict[str, int] = {}
        self.noted_ms: dict[str, int] = {}  # when each of them was, in ms since the epoch
        self._identity: tuple[int, int] | None = None
        self._commits: dict[int, CommitFacts] = {}
        self._starts: dict[int, tuple[FileFacts, ...]] = {}
        self._feed_rows: dict[str, int] = {}
        self._asked: set[int] = set()

    @property
    def rows(self) -> int | None:
        """The table's rows by its files' statistics, null if a file has none."""
        return total([file.records for file in self.files.values()])

    @property
    def size_bytes(self) -> int:
        """Bytes of the table's files."""
        return sum(file.size_bytes for file in self.files.values())

    @property
    def newest(self) -> datetime | None:
        """The greatest time in the time column, to the millisecond; null for no rows."""
        return max((file.newest for file in self.files.values() if file.newest is not None), default=None)

    def refresh(self) -> bool:
        """Read the commits since the last look, and tell whether there is a table."""
        if self.version >= 0 and self._identity != _identity(self._file(self.version)):
            self._forget()  # the table was recreated
        self._let_go()
        if self.version < 0:
            self._begin()
        while (entry := self._entry(self.version + 1)) is not None:
            self._apply(entry.actions)
            self.version += 1
            self._commits[self.version] = _facts(entry)
            self._identity = _identity(self._file(self.version))
        return self.version >= 0

    def commit(self, version: int) -> CommitFacts | None:
        """Return what a commit has done, null if it is no longer in the log."""
        self._asked.add(version)
        if version not in self._commits:
            entry = self._entry(version)
            if entry is None:
                return None
            self._commits[version] = _facts(entry)
        return self._commits[version]

    def feed_rows(self, commit: CommitFacts) -> tuple[int | None, ...]:
        """Return the rows of each file of the commit's change feed, null if a file is gone."""
        return tuple(self._rows_in(one) if isinstance(one, str) else one for one in commit.feed)

    def _rows_in(self, path: str) -> int | None:
        if path not in self._feed_rows:
            try:
                self._feed_rows[path] = int(pq.read_metadata(self.path / unquote(path)).num_rows)
            except (OSError, pa.ArrowException):
                return None
        return self._feed_rows[path]

    def files_at(self, version: int) -> tuple[FileFacts, ...] | None:
        """Return the files of an earlier version, the oldest first; null if the log does not say."""
        self._asked.add(version)
        if version not in self._starts:
            earlier = Log(self.path)
            numbers = sorted(_checkpoints(self._directory))
            earlier._begin_at(max((number for number in numbers if number <= version), default=None))
            while earlier.version < version:
                entry = earlier._entry(earlier.version + 1)
                if entry is None:
                    return None
                earlier._apply(entry.actions)
                earlier.version += 1
            by_age = sorted(earlier.files.items(), key=lambda item: (item[1].modified_ms, item[0]))
            self._starts[version] = tuple(file for _, file in by_age)
        return self._starts[version]

    def _let_go(self) -> None:
        """Drop what nobody has requested since the last refresh."""
        self._commits = {number: self._commits[number] for number in self._asked if number in self._commits}
        feeds = {path for facts in self._commits.values() for path in facts.feed}
        self._feed_rows = {path: rows for path, rows in self._feed_rows.items() if path in feeds}
        self._starts = {number: self._starts[number] for number in self._asked if number in self._starts}
        self._asked = set()

    def _begin(self) -> None:
        if (
            not (self._directory / f"{0:020}.json").exists()
            or (self._directory / "_last_checkpoint").exists()
        ):
            self._begin_at(max(_checkpoints(self._directory), default=None))

    def _begin_at(self, checkpoint: int | None) -> None:
        if checkpoint is None:
            return
        for path in _checkpoints(self._directory)[checkpoint]:
            for action in _read_checkpoint(path):
                self._apply([action])
        self.version = checkpoint
        said_when = self._entry(checkpoint)  # a checkpoint does not
        self._apply(() if said_when is None else said_when.actions)
        self._identity = _identity(self._file(checkpoint))

    def _file(self, version: int) -> Path:
        return self._directory / f"{version:020}.json"

    def _entry(self, version: int) -> LogEntry | None:
        try:
            return entry_of(version, self._file(version).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # missing or incomplete
            return None

    def _apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            if add := action.get("add"):
                self.files[str(add["path"])] = self._data_file(add)
            elif remove := action.get("remove"):
                self.files.pop(str(remove["path"]), None)
            elif txn := action.get("txn"):
                self.transactions[str(txn["appId"])] = int(txn["version"])
                self.noted_ms[str(txn["appId"])] = int(txn.get("lastUpdated") or 0)
            elif metadata := action.get("metaData"):
                self.table_id = str(metadata["id"])
                self.properties = dict(metadata.get("configuration") or {})
            elif info := action.get("commitInfo"):
                self.committed_ms = committed_ms_of(info)

    def _data_file(self, add: Mapping[str, Any]) -> FileFacts:
        newest = bounds_of(add)[1].get(self._time_column or "")
        return FileFacts(rows_of(add), int(add["size"]), int(add["modificationTime"]), _time(newest))


def _facts(entry: LogEntry) -> CommitFacts:
    own = tuple(str(file["path"]) for file in entry.of("cdc"))
    added = tuple(rows_of(file) for file in entry.of("add") if file.get("dataChange", True))
    changed = tuple(rows_of(file) for file in entry.feed)
    return CommitFacts(entry.version, entry.committed_ms, added, entry.rewrites, own or changed)


def _time(text: object) -> datetime | None:
    """Return a time that has an offset, null for anything else."""
    try:
        found = datetime.fromisoformat(str(text))
        return None if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def from_ms(ms: int) -> datetime | None:
    """Return the UTC time this many milliseconds after the epoch, null for one that no calendar has."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _checkpoints(directory: Path) -> dict[int, list[Path]]:
    """Return the log's checkpoints by version, without those that lack a part or were cut off."""
    found: dict[int, list[Path]] = {}
    for path in sorted(directory.glob("*.checkpoint*.parquet")):
        version, _, *part = path.stem.split(".")
        if not part:
            found[int(version)] = [path]
        elif all(number.isdecimal() for number in part):
            parts = [
                path.with_name(f"{version}.checkpoint.{one:010}.{part[-1]}.parquet") for one in _to(part)
            ]
            if all(one.exists() for one in parts):
                found[int(version)] = parts
    return {number: parts for number, parts in found.items() if all(map(_is_whole, parts))}


def _is_whole(path: Path) -> bool:
    """Tell whether a file was written to its end; after a power failure it may not have been."""
    try:
        return bool(pq.read_metadata(path))
    except (OSError, pa.ArrowException):
        return False


def _to(part: list[str]) -> range:
    return range(1, int(part[-1]) + 1)


def _read_checkpoint(path: Path) -> Iterable[Mapping[str, Any]]:
    wanted = ("add", "txn", "metaData")
    file = pq.ParquetFile(path)
    leaves = [
        name
        for name in (file.schema.column(place).path for place in range(len(file.schema)))
        if name.split(".")[0] in wanted and "stats_parsed" not in name and "partitionValues" not in name
    ]
    for batch in file.iter_batches(columns=leaves):
        for row in batch.to_pylist():
            if metadata := row.get("metaData"):
                metadata["configuration"] = dict(metadata.get("configuration") or {})
            yield {kind: value for kind, value in row.items() if value}
