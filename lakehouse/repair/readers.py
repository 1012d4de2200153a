"""Who reads a table, and how far each reader has come: what maintenance has to leave in place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from lakehouse import tables
from lakehouse.progress import snapshots
from lakehouse.progress.snapshots import Position
from lakehouse.tables import Lake

_UNKNOWN = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Reader:
    """A query that reads a table: its appends, or its change feed."""

    query: str
    feed: bool


@dataclass(frozen=True)
class Held:
    """A reader that has not read a version, and when that was committed (UTC); null: it has left the log."""

    reader: str
    since: datetime | None


def position_of(lake: Lake, reader: Reader, path: str, *, back: int = 0) -> Position | None:
    """Return how far the reader's last finished micro-batch has come, or one `back` before it."""
    last = snapshots.finished(lake, reader.query)
    if last is None or last < back:
        return None
    return snapshots.positions(lake, reader.query, last - back).get(tables.table_id(lake.spark, path))


def held_by(lake: Lake, readers: Iterable[Reader], path: str) -> Held | None:
    """Return the reader with the oldest version that it has not read; null where all have read all."""
    waiting = [held for reader in readers if (held := _unread(lake, reader, path)) is not None]
    return min(waiting, key=lambda held: held.since or _UNKNOWN, default=None)


def have_read(lake: Lake, readers: Iterable[Reader], path: str, upto: datetime) -> bool:
    """Tell whether every reader has read all that was committed before a time (UTC)."""
    for reader in readers:
        if position_of(lake, reader, path) is None:
            return False
        held = _unread(lake, reader, path)
        if held is not None and (held.since is None or held.since < upto):
            return False
    return True


def _unread(lake: Lake, reader: Reader, path: str) -> Held | None:
    spark, position = lake.spark, position_of(lake, reader, path)
    if position is None:
        return None  # it has never read the table, and will begin with the rows as they are then
    newest, first_kept = tables.version_of(spark, path), tables.first_version(spark, path)
    if position.version < first_kept:
        return Held(reader.query, None)
    if reader.feed:
        read = snapshots.version_read(spark, path, position)
        if read is not None and snapshots.with_same_rows(spark, path, max(read, first_kept)) == newest:
            return None
    elif not snapshots.has_unread(spark, path, position, newest + 1):
        return None
    return Held(reader.query, tables.committed_at(spark, path, min(position.version, newest)))
