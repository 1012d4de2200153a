"""Read a Delta table's log incrementally, without a JVM.

The first refresh starts at the newest checkpoint. Later ones read one file per new commit; without new
commits, they only check for the next file, which takes one request to an object store. In an object store,
recreated tables are detected every ten seconds and at each new commit.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.storage.files import Files, files_of
from lakehouse.storage.tables.entries import (
    LOG,
    LogEntry,
    bounds_of,
    commit_name,
    commits_among,
    committed_ms_of,
    entry_of,
    landings_of,
    moment_of,
    reading_order,
    rows_of,
    total,
)
from lakehouse.storage.tables.inside import refuse_outside
from lakehouse.storage.tables.specs import EPOCH

_AT_ONCE = 100  # commits read in parallel
_FEW = 10
"""If a log in an object store has more new commits, it is reread from its newest checkpoint, in parallel."""
_IDENTIFIED_EVERY_S = 10.0
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.([0-9]{10})\.([0-9]{10}))?\.parquet")
_One = TypeVar("_One")
_Other = TypeVar("_Other")


@dataclass(frozen=True)
class FileFacts:
    """A data file: rows (null without statistics), bytes, write time, newest time and first landing."""

    records: int | None
    size_bytes: int
    modified_ms: int
    newest: datetime | None
    landed: datetime


@dataclass(frozen=True)
class CommitFacts:
    """The effect of a commit on a table's rows.

    `added` holds the row count of each file with new rows, in log order; null without statistics. `rewrites`:
    existing rows were removed or changed. `feed` is the commit's change feed: the paths of its change files
    or, if it has none, the row counts of the added and removed files.
    """

    version: int
    at_ms: int | None
    added: tuple[int | None, ...]
    rewrites: bool
    feed: tuple[str | int | None, ...]


class Log:
    """A table's log, as of the last `refresh`.

    `version` is -1 if there is no table. `time_column` is a timestamp column with statistics.
    """

    def __init__(self, path: str, time_column: str | None = None) -> None:
        self.path = path
        self._files = files_of(path)
        self._time_column = time_column
        self._forget()

    def _forget(self) -> None:
        self.version = -1
        self.table_id: str | None = None
        self.properties: Mapping[str, str] = {}
        self.committed_ms: int | None = None
        self.files: dict[str, FileFacts] = {}
        self.transactions: dict[str, int] = {}
        self.noted_ms: dict[str, int] = {}  # the time of each transaction, in ms since the epoch
        self._identity: Hashable = None
        self._identified_at = 0.0
        self._commits: dict[int, CommitFacts] = {}
        self._starts: dict[int, tuple[FileFacts, ...]] = {}
        self._feed_rows: dict[str, int] = {}
        self._asked: set[int] = set()

    @property
    def rows(self) -> int | None:
        """The table's row count from file statistics; null if a file has none."""
        return total([file.records for file in self.files.values()])

    @property
    def size_bytes(self) -> int:
        """The total size of the table's files in bytes."""
        return sum(file.size_bytes for file in self.files.values())

    @property
    def newest(self) -> datetime | None:
        """The greatest time in the time column, to the millisecond; null if there are no rows."""
        return max((file.newest for file in self.files.values() if file.newest is not None), default=None)

    def refresh(self) -> bool:
        """Read the commits since the last refresh, and tell whether the table exists.

        Raises TableError if the log names a file outside the table's directory.
        """
        is_due = self._is_due()
        if is_due and self._is_recreated():
            self._forget()
        self._let_go()
        if is_due and self.version < 0:
            self._begin()
        began = self.version
        while (read := self._read(self.version + 1)) is not None:
            is_behind = self.version - began >= _FEW
            if self._files.is_far and (is_behind or (self.version == began and self._is_recreated())):
                self._forget()
                self._begin()
                began = self.version
            else:
                self._take(*read)
        return self.version >= 0

    def commits(self, first: int) -> Iterator[CommitFacts | None]:
        """Yield the effects of the commits from version `first` on; null for commits no longer in the log."""
        for begin in range(first, self.version + 1, _AT_ONCE):
            versions = range(begin, min(begin + _AT_ONCE, self.version + 1))
            self._asked.update(versions)
            missing = [version for version in versions if version not in self._commits]
            for read in self.each(self._read, missing):
                if read is not None:
                    self._commits[read[0].version] = _facts(read[0])
            yield from (self._commits.get(version) for version in versions)

    def open(self, path: str) -> pa.NativeFile:
        """Open a data file by its path in the log; raises FileNotFoundError if it is gone."""
        return self._files.open(unquote(path))

    def each(self, function: Callable[[_One], _Other], items: Iterable[_One]) -> list[_Other]:
        """Return a function's result for each item; with object stores, the calls run in parallel."""
        return self._files.each(function, items)

    def feed_rows(self, commit: CommitFacts) -> tuple[int | None, ...]:
        """Return the row count of each file in the commit's change feed; null for a missing file."""
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

        Null if the log no longer has that version.
        """
        self._asked.add(version)
        if version not in self._starts:
            earlier = Log(self.path)
            earlier._begin_at(_checkpoints(self._files, self._files.names(LOG), upto=version))
            for read in self.each(earlier._read, range(earlier.version + 1, version + 1)):
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
        """Drop cached commits and versions that were not requested since the last refresh."""
        self._commits = {number: self._commits[number] for number in self._asked if number in self._commits}
        feeds = {path for facts in self._commits.values() for path in facts.feed}
        self._feed_rows = {path: rows for path, rows in self._feed_rows.items() if path in feeds}
        self._starts = {number: self._starts[number] for number in self._asked if number in self._starts}
        self._asked = set()

    def _begin(self) -> None:
        """Read the newest checkpoint, and the listed commits after it."""
        self._identified_at = time.monotonic()
        names = self._files.names(LOG)
        self._begin_at(_checkpoints(self._files, names))
        there = commits_among(names)
        for first in range(self.version + 1, max(there, default=-1) + 1, _AT_ONCE):
            for read in self.each(self._read, range(first, min(first + _AT_ONCE, max(there) + 1))):
                if read is None:
                    return
                self._take(*read)

    def _begin_at(self, checkpoint: tuple[int, Sequence[str]] | None) -> None:
        if checkpoint is None:
            return
        version, parts = checkpoint
        for part in parts:
            with self._files.open(f"{LOG}/{part}") as file:
                for action in _read_checkpoint(file):
                    refuse_outside(self.path, version, [action])
                    self._apply([action])
        if (read := self._read(version)) is not None:  # for its time, which a checkpoint lacks
            self._apply(read[0].actions)
            self._identity = read[1]
        self.version = version

    def _is_due(self) -> bool:
        """Tell whether to check for a recreated table or a new checkpoint, not just for the next commit."""
        return not self._files.is_far or time.monotonic() - self._identified_at >= _IDENTIFIED_EVERY_S

    def _is_recreated(self) -> bool:
        """Tell whether the newest commit's file has changed, which means that the table was recreated."""
        if self.version < 0:
            return False
        self._identified_at = time.monotonic()
        found = self._files.find(commit_name(self.version))
        return self._identity != (None if found is None else found.stamp)

    def _read(self, version: int) -> tuple[LogEntry, Hashable] | None:
        """Return a commit and its file's identity; null if the commit is missing or incomplete."""
        try:
            found = self._files.find(commit_name(version))
            return None if found is None else (entry_of(version, found.text(), self.path), found.stamp)
        except (FileNotFoundError, ValueError):
            return None

    def _take(self, entry: LogEntry, stamp: Hashable) -> None:
        """Apply the next commit."""
        self._apply(entry.actions)
        self.version = entry.version
        self._commits[entry.version] = _facts(entry)
        self._identity, self._identified_at = stamp, time.monotonic()

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
    """Return the UTC time `ms` milliseconds after the epoch; null if it is out of range."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def _checkpoints(files: Files, names: Sequence[str], upto: int | None = None) -> tuple[int, list[str]] | None:
    """Return the version and files of the newest complete checkpoint (at most `upto`); null if none."""
    found = defaultdict[tuple[int, int], list[str]](list)
    for name in names:
        if (one := _CHECKPOINT.fullmatch(name)) is not None and (upto is None or int(one[1]) <= upto):
            found[int(one[1]), int(one[3] or 1)].append(name)
    for version, parts in sorted(found, reverse=True):
        there = found[version, parts]
        if parts == 1:
            there = there[:1]
        if len(there) == parts and (files.is_far or all(_is_whole(files, name) for name in there)):
            return version, there
    return None


def _is_whole(files: Files, name: str) -> bool:
    """Tell whether a file is complete; after a power failure it may be truncated."""
    try:
        with files.open(f"{LOG}/{name}") as file:
            return bool(pq.read_metadata(file))
    except (OSError, pa.ArrowException):
        return False


def _read_checkpoint(source: pa.NativeFile) -> Iterable[Mapping[str, Any]]:
    wanted = ("add", "txn", "metaData")
    file = pq.ParquetFile(source)
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
