"""Follow a table's log without a JVM: find new commits, and notice if the table was recreated at its path.

Versions have no gaps, so a known version is the newest as long as the next commit's file is missing. If the
known version's own commit file has changed, the file belongs to a different table. In an object store, each
check is a request, so this second check is made only every ten seconds and with each new commit.

deltalake reads data files and statistics, but it finds an application's transaction only by its full name,
and never returns the transaction's time. This module therefore also reads checkpoints.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.storage.files import files_of
from lakehouse.storage.tables.entries import LOG, LogEntry, commit_name, entry_of
from lakehouse.storage.tables.inside import refuse_outside

IDENTIFIED_EVERY_S = 10.0
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.([0-9]{10})\.([0-9]{10}))?\.parquet")
_READ_KINDS = ("add", "txn", "metaData")


class WatchedLog:
    """The log of the table at a path. `version` is the last version passed to `reach`, or -1."""

    def __init__(self, path: str, *, identified_every_s: float = IDENTIFIED_EVERY_S) -> None:
        self.path = path
        self.files = files_of(path)
        self._identified_every_s = identified_every_s
        self.version = -1
        self._stamp: Hashable = None
        self._looked_at = 0.0

    def forget(self) -> None:
        """Forget everything about the table."""
        self.version, self._stamp = -1, None

    def reach(self, version: int, stamp: Hashable) -> None:
        """Record that the reader has read up to a version, whose commit file has this stamp."""
        self.version, self._stamp, self._looked_at = version, stamp, time.monotonic()

    def stamp(self, version: int) -> Hashable:
        """Return a value that changes when a commit's file is replaced, or None if the file is missing."""
        found = self.files.find(commit_name(version))
        return None if found is None else found.stamp

    def has_next(self) -> bool:
        """Return whether the version after the known one exists."""
        return self.files.find(commit_name(self.version + 1)) is not None

    def read(self, version: int) -> tuple[LogEntry, Hashable] | None:
        """Return a commit and its file's stamp, or None if the commit is missing or incomplete.

        Raises TableError if the commit names a file outside the table's directory.
        """
        try:
            found = self.files.find(commit_name(version))
            return None if found is None else (entry_of(version, found.text(), self.path), found.stamp)
        except (FileNotFoundError, ValueError):
            return None

    def is_due(self) -> bool:
        """Return whether it is time to check also for a recreated table or a new checkpoint."""
        return not self.files.is_far or time.monotonic() - self._looked_at >= self._identified_every_s

    def is_recreated(self) -> bool:
        """Return whether the known version's commit now belongs to a different table."""
        if self.version < 0:
            return False
        self._looked_at = time.monotonic()
        return self._stamp != self.stamp(self.version)

    def names(self) -> list[str]:
        """Return the sorted names of the log's files."""
        self._looked_at = time.monotonic()
        return self.files.names(LOG)

    def checkpoint(self, names: Sequence[str], upto: int | None = None) -> tuple[int, list[str]] | None:
        """Return the version and files of the newest complete checkpoint (no later than `upto`), or None."""
        found = defaultdict[tuple[int, int], list[str]](list)
        for name in names:
            if (one := _CHECKPOINT.fullmatch(name)) is not None and (upto is None or int(one[1]) <= upto):
                found[int(one[1]), int(one[3] or 1)].append(name)
        for version, parts in sorted(found, reverse=True):
            there = found[version, parts][: 1 if parts == 1 else None]
            if len(there) == parts and (self.files.is_far or all(map(self._is_whole, there))):
                return version, there
        return None

    def actions(self, version: int, part: str) -> Iterator[Mapping[str, Any]]:
        """Yield a checkpoint file's added data files, transactions and metadata.

        Raises TableError if the checkpoint names a file outside the table's directory.
        """
        with self.files.open(f"{LOG}/{part}") as source:
            file = pq.ParquetFile(source)
            paths = [file.schema.column(place).path for place in range(len(file.schema))]
            leaves = [
                path
                for path in paths
                if path.split(".")[0] in _READ_KINDS
                and "stats_parsed" not in path
                and "partitionValues" not in path
            ]
            for batch in file.iter_batches(columns=leaves):
                for row in batch.to_pylist():
                    if metadata := row.get("metaData"):
                        metadata["configuration"] = dict(metadata.get("configuration") or {})
                    action = {kind: value for kind, value in row.items() if value}
                    refuse_outside(self.path, version, [action])
                    yield action

    def _is_whole(self, name: str) -> bool:
        """Return whether a checkpoint file is complete. A power failure can truncate a file."""
        try:
            with self.files.open(f"{LOG}/{name}") as file:
                return bool(pq.read_metadata(file))
        except (OSError, pa.ArrowException):
            return False
