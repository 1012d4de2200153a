"""What waits in a table for a reader that follows its commits, in pieces for one micro-batch each.

Delta's streaming source lists a table's log several times for each micro-batch, so it costs the more the
longer the log is. Whoever knows the last version that has been read finds the next ones by their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.progress.snapshots import commit_of
from lakehouse.tables.entries import Action, LogEntry, size_of

MOST_COMMITS = 50
"""So many versions are read at once, at most; their files in one scan."""


@dataclass(frozen=True)
class Backlog:
    """Versions that wait, from `first` on and before `end`, and their files in the words of the log.

    There may be no files: for compaction, say, or commits that change rows and are skipped.
    """

    first: int
    end: int
    files: tuple[Action, ...]


def appends(spark: SparkSession, path: str, first: int, end: int, *, max_bytes: int) -> Backlog | None:
    """Return what versions have appended, of those from the first one on and before the end.

    It is as many versions as fit into `max_bytes` of files, at least one. Null if the first one is larger and
    has several files: Delta's source reads such a version in parts. Raises TableError where log retention
    has removed a commit.
    """
    commits = _commits(spark, path, first, min(end, first + MOST_COMMITS))
    return _piece((commit.appended for commit in commits), first, max_bytes)


def changes(spark: SparkSession, path: str, first: int, end: int, *, max_bytes: int) -> Backlog | None:
    """Return the same of the files of versions' change feeds."""
    commits = _commits(spark, path, first, min(end, first + tables.FEW_VERSIONS))
    return _piece((commit.feed for commit in commits), first, max_bytes)


def _commits(spark: SparkSession, path: str, first: int, end: int) -> Iterator[LogEntry]:
    return (commit_of(spark, path, version) for version in range(first, end))


def _piece(versions: Iterator[list[Action]], first: int, max_bytes: int) -> Backlog | None:
    files: list[Action] = []
    size, end = 0, first
    for added in versions:
        more = size_of(added)
        if files and size + more > max_bytes:
            break
        if more > max_bytes and len(added) > 1:
            return None
        files, size, end = [*files, *added], size + more, end + 1
    return Backlog(first, end, tuple(files))
