"""Measure a query's backlog from table logs and the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakehouse.engine.ops_tables import lateness
from lakehouse.operations.telemetry.broker import Broker, Ends
from lakehouse.operations.telemetry.delta_log import CommitFacts, FileFacts, Log, from_ms
from lakehouse.operations.telemetry.queries import StreamQuery
from lakehouse.operations.telemetry.values import EventTimes, LayerLag, PartitionLag, TableState
from lakehouse.storage.spark.kafka_times import NO_TIMESTAMP
from lakehouse.storage.tables.entries import total
from lakehouse.storage.tables.specs import Position


@dataclass(frozen=True)
class Unread:
    """How many rows and commits of a table are unread, and the time of the oldest unread commit.

    If the number of rows is unknown, `rows` is None, and `reason` says why.
    """

    rows: int | None
    since_ms: int | None = None
    commits: int = 0
    reason: str | None = None


_RowsOf = Callable[[CommitFacts], Sequence[int | None]]
"""Returns the number of rows that a reader receives from each file in a commit."""


def unread_appends(log: Log, position: Position | None) -> Unread:
    """Return the unread appends after a position. Without a position, all rows are unread.

    Commits that change or remove rows are skipped, because readers skip them. In a reader's initial snapshot,
    a file with several landing times counts as read once the reader has reached it.
    """
    return _unread(log, position, lambda commit: () if commit.rewrites else commit.added)


def unread_changes(log: Log, position: Position | None) -> Unread:
    """Return the unread changes after a position. Without a position, all of the table's rows are unread."""
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
    return Unread(None, reason=f"log retention removed version {version} before it was read")


_CLOCKS_DIFFER = timedelta(minutes=5)


def partition_lags(
    topic: str, offsets: Mapping[int, int], ends: Mapping[int, Ends], broker: Broker, now: datetime
) -> list[PartitionLag]:
    """Return bronze's backlog in each of a topic's partitions."""
    positions = {number: offsets.get(number, there.first) for number, there in ends.items()}
    # Records deleted by the broker do not count. Bronze skips them only if it is allowed to.
    unread = {number: max(positions[number], there.first) for number, there in ends.items()}
    waiting = {
        (topic, number): unread[number] for number, there in ends.items() if unread[number] < there.end
    }
    times = broker.times_of(waiting)
    found = []
    for number, there in ends.items():
        if positions[number] > there.end:
            reason = f"bronze has read up to offset {positions[number]:,}: the topic was recreated"
            found.append(PartitionLag(topic, number, positions[number], there.end, None, None, reason))
            continue
        records, at = there.end - unread[number], times.get((topic, number))
        seconds = _age_s(at, now) if records else 0.0
        said = "is unknown" if at is None else f"is {at} ms, which is not plausible"
        reason = f"the time of the record at offset {unread[number]:,} of partition {number} {said}"
        why, held = reason if seconds is None else None, there.open_transaction
        found.append(PartitionLag(topic, number, positions[number], there.end, records, seconds, why, held))
    return found


def unknown_partitions(topic: str, offsets: Mapping[int, int], reason: str) -> list[PartitionLag]:
    """Return partitions whose backlog is unknown, with bronze's position and the reason."""
    return [
        PartitionLag(topic, number, offset, None, None, None, reason)
        for number, offset in sorted(offsets.items())
    ]


def layer_lag(
    query: StreamQuery, source: str, log: Log, position: Position | None, now: datetime
) -> LayerLag:
    """Return a query's backlog in one of its source tables."""
    if log.version < 0:
        return LayerLag(query.layer, query.name, source, 0, 0.0, 0)
    if position is not None and position.version > log.version + 1:
        unread = Unread(
            None, reason=f"{source} is older than its reader's position: it was restored or recreated"
        )
    elif query.layer == "export":
        unread = unread_changes(log, position)
    else:
        unread = unread_appends(log, position)
    if unread.rows is None:
        return LayerLag(query.layer, query.name, source, None, None, None, unread.reason)
    seconds = _age_s(unread.since_ms, now) if unread.rows else 0.0
    reason = None if seconds is not None else f"the time of a commit to {source} is unknown"
    return LayerLag(query.layer, query.name, source, unread.rows, seconds, unread.commits, reason)


def table_state(name: str, log: Log) -> TableState:
    """Return a table's state at its newest commit."""
    at = None if log.committed_ms is None else from_ms(log.committed_ms)
    return TableState(name, log.version, at, len(log.files), log.size_bytes, log.rows)


def event_times(name: str, log: Log) -> EventTimes | None:
    """Return the latest event time in a silver table's records, and the watermark.

    Returns None if no record contains an event time. Kafka timestamps do not count. During a backfill, the
    watermark is the value that will apply afterwards.
    """
    newest = log.newest
    if newest is None:
        return None
    try:
        allowed_s = lateness.setting_in(log.transactions, log.properties, name)
        watermark = newest - timedelta(seconds=allowed_s)
    except OverflowError:  # before the year 1
        watermark = newest
    return EventTimes(name, newest, watermark)


def _age_s(ms: int | None, now: datetime) -> float | None:
    """Return the age in seconds of a time in ms since the epoch, or None if it is not a plausible write time.

    Producers may write any number, such as -1 for a missing time, microseconds, or a time in the far future.
    """
    at = None if ms is None or ms == NO_TIMESTAMP else from_ms(ms)
    if at is None or at - now > _CLOCKS_DIFFER:
        return None
    return max((now - at).total_seconds(), 0.0)
