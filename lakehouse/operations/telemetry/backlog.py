"""The backlog of a query in a Delta table, from the table's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakehouse.operations.telemetry.delta_log import CommitFacts, FileFacts, Log
from lakehouse.storage.tables.entries import total
from lakehouse.storage.tables.specs import Position


@dataclass(frozen=True)
class Unread:
    """The number of unread rows (null: unknown, with a reason), the oldest one's time, and their commits."""

    rows: int | None
    since_ms: int | None = None
    commits: int = 0
    reason: str | None = None


_RowsOf = Callable[[CommitFacts], Sequence[int | None]]
"""Returns, for each file of a commit, the number of rows that a reader gets."""


def unread_appends(log: Log, position: Position | None) -> Unread:
    """Return the unread appends after a position (null: all rows).

    Commits that change or remove rows are skipped, as their readers do. In a reader's initial snapshot, a
    file with records of several landing times counts as read once the reader has reached it.
    """
    return _unread(log, position, lambda commit: () if commit.rewrites else commit.added)


def unread_changes(log: Log, position: Position | None) -> Unread:
    """Return the unread changes after a position (null: all rows of the table)."""
    return _unread(log, position, log.feed_rows)


def _unread(log: Log, position: Position | None, rows_of: _RowsOf) -> Unread:
    if position is None:
        return _of_files(tuple(log.files.values()))
    if position.is_beginning:
        files = log.files_at(position.version)
        if files is None:
            return _lost(position.version)
        first = _of_files(files[position.files :])
    else:
        first = Unread(0)
    later = _of_commits(log, position, rows_of)
    if first.rows is None or later.rows is None:
        return later if later.rows is None else first
    since = first.since_ms if first.rows else later.since_ms
    return Unread(first.rows + later.rows, since, first.commits + later.commits)


def _of_commits(log: Log, position: Position, rows_of: _RowsOf) -> Unread:
    rows, since, commits = 0, None, 0
    first = position.version + 1 if position.is_beginning else position.version
    unread = list[CommitFacts]()
    for version, commit in enumerate(log.commits(first), start=first):
        if commit is None:
            return _lost(version)
        unread.append(commit)
    for commit, of_files in zip(unread, log.each(rows_of, unread), strict=True):
        found = total(of_files)
        if found is None:
            return Unread(None, reason=f"version {commit.version} has files without row counts")
        if found:
            rows, commits = rows + found, commits + 1
            since = commit.at_ms if since is None else since
    return Unread(rows, since, commits)


def _of_files(files: Sequence[FileFacts]) -> Unread:
    rows = total([file.records for file in files])
    if rows is None:
        return Unread(None, reason="the table has files without row counts")
    since = min((file.modified_ms for file in files), default=None)
    return Unread(rows, since if rows else None, 1 if rows else 0)


def _lost(version: int) -> Unread:
    return Unread(None, reason=f"log retention has removed version {version} before it was read")
