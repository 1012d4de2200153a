"""Which rows of a Delta table a query has not processed yet, from the table's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakehouse.tables.entries import total
from lakehouse.telemetry.delta_log import CommitFacts, File, Log
from lakehouse.telemetry.progress import Place


@dataclass(frozen=True)
class Unread:
    """Waiting rows (null if unknown), since when, and in how many commits; the reason for a null."""

    rows: int | None
    since_ms: int | None = None
    commits: int = 0
    reason: str | None = None


_RowsOf = Callable[[CommitFacts], Sequence[int | None]]
"""Returns, for each file of a commit, the number of rows that a reader gets."""


def unread_appends(log: Log, place: Place | None) -> Unread:
    """Return the unread appends; a reader of appends skips commits that rewrite rows."""
    return _unread(log, place, lambda commit: () if commit.rewrites else commit.added)


def unread_changes(log: Log, place: Place | None) -> Unread:
    """Return the unread part of the table's change feed."""
    return _unread(log, place, log.feed_rows)


def _unread(log: Log, place: Place | None, rows_of: _RowsOf) -> Unread:
    if place is None:  # a stream begins with the table's current rows
        return _of_files(sorted(log.files.values(), key=lambda file: file.modified_ms))
    if place.is_starting:
        files = log.files_at(place.version)
        if files is None:
            return _lost(log, place)
        first = _of_files(files[place.index + 1 :])
    else:
        first = Unread(0)
    later = _of_commits(log, place, rows_of)
    if first.rows is None or later.rows is None:
        return later if later.rows is None else first
    since = first.since_ms if first.rows else later.since_ms
    return Unread(first.rows + later.rows, since, first.commits + later.commits)


def _of_commits(log: Log, place: Place, rows_of: _RowsOf) -> Unread:
    rows, since, commits = 0, None, 0
    first = place.version + 1 if place.is_starting else place.version
    for version in range(first, log.version + 1):
        commit = log.commit(version)
        if commit is None:
            return _lost(log, place)
        read = place.index + 1 if version == place.version and not place.is_starting else 0
        found = total(rows_of(commit)[read:])
        if found is None:
            return Unread(None, reason=f"version {version} has files whose rows are not known")
        if found:
            rows, commits = rows + found, commits + 1
            since = commit.at_ms if since is None else since
    return Unread(rows, since, commits)


def _of_files(files: Sequence[File]) -> Unread:
    rows = total([file.records for file in files])
    if rows is None:
        return Unread(None, reason="the table has files whose rows are not known")
    return Unread(rows, files[0].modified_ms if rows else None, 1 if rows else 0)


def _lost(log: Log, place: Place) -> Unread:
    return Unread(
        None,
        reason=f"the table was read up to version {place.version}, and log retention has removed commits "
        f"between that and version {log.version}",
    )
