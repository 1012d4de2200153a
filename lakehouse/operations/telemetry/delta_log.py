"""Read a Delta table's log incrementally, without a JVM: its files, commits and transactions.

The first refresh starts at the newest checkpoint. Later refreshes read one file per new commit. If there are
no new commits, they only check for the next file (`lakehouse.storage.tables.watched_log`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.storage.tables.entries import (
    LogEntry,
    bounds_of,
    commits_among,
    committed_ms_of,
    landings_of,
    moment_of,
    reading_order,
    rows_of,
    total,
)
from lakehouse.storage.tables.specs import EPOCH
from lakehouse.storage.tables.watched_log import IDENTIFIED_EVERY_S, WatchedLog

_AT_ONCE = 100  # commits read in parallel
_FEW = 10
"""A log in an object store with more new commits than this is reread from its newest checkpoint."""
_One = TypeVar("_One")
_Other = TypeVar("_Other")


@dataclass(frozen=True)
class FileFacts:
    """A data file's row count (None without statistics), size in bytes and write time.

    `newest` is the latest time in the time column, and `landed` is the earliest landing time.
    """

    records: int | None
    size_bytes: int
    modified_ms: int
    newest: datetime | None
    landed: datetime


@dataclass(frozen=True)
class CommitFacts:
    """A commit's effect on a table's rows.

    `added` contains the row count of each file with new rows, in log order. It is None without statistics.
    `rewrites` says whether existing rows were removed or changed. `feed` contains the paths of the commit's
    change files. If the commit has no change files, `feed` contains the row counts of the added and removed
    files.
    """

    version: int
    at_ms: int | None
    added: tuple[int | None, ...]
    rewrites: bool
    feed: tuple[str | int | None, ...]


class Log:
    """The content of a Delta table's log, as of the last `refresh`.

    `time_column` is a timestamp column with statistics.
    """

    def __init__(
        self,
        path: str,
        time_column: str | None = None,
        *,
        identified_every_s: float = IDENTIFIED_EVERY_S,
    ) -> None:
        self.path = path
        self._watched = WatchedLog(path, identified_every_s=identified_every_s)
        self._files = self._watched.files
        self._time_column = time_column
        self._forget()

    def _forget(self) -> None:
        self._watched.forget()
        self.table_id: str | None = None
        self.properties: Mapping[str, str] = {}
        self.committed_ms: int | None = None
        self.files: dict[str, FileFacts] = {}
        self.transactions: dict[str, int] = {}
        self.noted_ms: dict[str, int] = {}  # the time of each transaction, in ms since the epoch
        self.noted_bytes: dict[str, int] = {}  # the size of the files that its commit added
        self._commits: dict[int, CommitFacts] = {}
        self._starts: dict[int, tuple[FileFacts, ...]] = {}
        self._feed_rows: dict[str, int] = {}
        self._asked: set[int] = set()

    @property
    def version(self) -> int:
        """The newest version, or -1 if the table does not exist."""
        return self._watched.version

    @property
    def rows(self) -> int | None:
        """The table's row count according to file statistics, or None if a file has no statistics."""
        return total([file.records for file in self.files.values()])

    @property
    def size_bytes(self) -> int:
        """The total size of the table's files in bytes."""
        return sum(file.size_bytes for file in self.files.values())

    @property
    def newest(self) -> datetime | None:
        """The latest time in the time column, to the millisecond, or None if the table has no rows."""
        return max((file.newest for file in self.files.values() if file.newest is not None), default=None)

    def refresh(self) -> bool:
        """Read the commits since the last refresh, and return whether the table exists.

        Raises TableError if the log names a file outside the table's directory.
        """
        watched = self._watched
        is_due = watched.is_due()
        if is_due and watched.is_recreated():
            self._forget()
        self._let_go()
        if is_due and self.version < 0:
            self._begin()
        began = self.version
        while (read := watched.read(self.version + 1)) is not None:
            is_behind = self.version - began >= _FEW
            if self._files.is_far and (is_behind or (self.version == began and watched.is_recreated())):
                self._forget()
                self._begin()
                began = self.version
            else:
                self._take(*read)
        return self.version >= 0

    def commits(self, first: int) -> Iterator[CommitFacts | None]:
        """Yield the effect of each commit from version `first` on, or None for a commit gone from the log."""
        for begin in range(first, self.version + 1, _AT_ONCE):
            versions = range(begin, min(begin + _AT_ONCE, self.version + 1))
            self._asked.update(versions)
            missing = [version for version in versions if version not in self._commits]
            for read in self.each(self._watched.read, missing):
                if read is not None:
                    self._commits[read[0].version] = _facts(read[0])
            yield from (self._commits.get(version) for version in versions)

    def open(self, path: str) -> pa.NativeFile:
        """Open a data file by its path in the log. Raises FileNotFoundError if the file is gone."""
        return self._files.open(unquote(path))

    def each(self, function: Callable[[_One], _Other], items: Iterable[_One]) -> list[_Other]:
        """Call a function with each item, and return the results. On object stores, calls run in parallel."""
        return self._files.each(function, items)

    def feed_rows(self, commit: CommitFacts) -> tuple[int | None, ...]:
        """Return the row count of each file in a commit's change feed, or None for a missing file."""
        return tuple(self._rows_in(one) if isinstance(one, str) else one for one in commit.feed)

    def _rows_in(self, path: str) -> int | None:
        if path not in self._feed_rows:
            try:
                with self.open(path) as file:
                    self._feed_rows[path] = int(pq.read_metadata(file).num_rows)
            except (OSError, pa.ArrowException):
                return None
        return self._feed_rows[path]

    def files_at(self, version: int) -> tuple[FileFacts, ...] | None:
        """Return the files of an earlier version, in the order in which a new reader reads them.

        Returns None if the log no longer contains the version.
        """
        self._asked.add(version)
        if version not in self._starts:
            earlier = Log(self.path)
            earlier._begin_at(earlier._watched.names(), upto=version)
            for read in self.each(self._watched.read, range(earlier.version + 1, version + 1)):
                if read is None:
                    return None
                earlier._take(*read)
            in_order = sorted(
                earlier.files.items(),
                key=lambda item: reading_order(item[1].landed, item[1].modified_ms, item[0]),
            )
            self._starts[version] = tuple(file for _, file in in_order)
        return self._starts[version]

    def _let_go(self) -> None:
        """Drop cached commits and versions that have not been requested since the last refresh."""
        self._commits = {number: self._commits[number] for number in self._asked if number in self._commits}
        feeds = {path for facts in self._commits.values() for path in facts.feed}
        self._feed_rows = {path: rows for path, rows in self._feed_rows.items() if path in feeds}
        self._starts = {number: self._starts[number] for number in self._asked if number in self._starts}
        self._asked = set()

    def _begin(self) -> None:
        """Read the newest checkpoint, and the commits after it in the listing."""
        names = self._watched.names()
        self._begin_at(names)
        newest = max(commits_among(names), default=-1)
        for first in range(self.version + 1, newest + 1, _AT_ONCE):
            for read in self.each(self._watched.read, range(first, min(first + _AT_ONCE, newest + 1))):
                if read is None:
                    return
                self._take(*read)

    def _begin_at(self, names: Sequence[str], upto: int | None = None) -> None:
        checkpoint = self._watched.checkpoint(names, upto)
        if checkpoint is None:
            return
        version, parts = checkpoint
        for part in parts:
            self._apply(self._watched.actions(version, part))
        read = self._watched.read(version)
        if read is not None:  # for the commit's time, which a checkpoint does not contain
            self._apply(read[0].actions)
            self._weigh(read[0])
        self._watched.reach(version, None if read is None else read[1])

    def _take(self, entry: LogEntry, stamp: Hashable) -> None:
        """Apply the next commit."""
        self._apply(entry.actions)
        self._weigh(entry)
        self._watched.reach(entry.version, stamp)
        self._commits[entry.version] = _facts(entry)

    def _weigh(self, entry: LogEntry) -> None:
        """Add up the files of a micro-batch's commit, except those that the commit only marks rows in."""
        removed = {file["path"] for file in entry.of("remove")}
        added = sum(int(file["size"]) for file in entry.of("add") if file["path"] not in removed)
        self.noted_bytes |= {str(txn["appId"]): added for txn in entry.of("txn")}

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
        return FileFacts(
            rows_of(add),
            int(add["size"]),
            int(add["modificationTime"]),
            moment_of(newest),
            landings_of(add)[0],
        )


def _facts(entry: LogEntry) -> CommitFacts:
    own = tuple(str(file["path"]) for file in entry.of("cdc"))
    added = tuple(rows_of(file) for file in entry.of("add") if file.get("dataChange", True))
    changed = tuple(rows_of(file) for file in entry.feed)
    return CommitFacts(entry.version, entry.committed_ms, added, entry.rewrites, own or changed)


def from_ms(ms: int) -> datetime | None:
    """Return the UTC time at `ms` milliseconds after the epoch, or None if it is out of range."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None
