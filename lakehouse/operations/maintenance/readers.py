"""A table's readers. Maintenance must keep the versions that they have not read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from lakehouse.engine.progress import cuts, sent
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Position

_UNKNOWN = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Reader:
    """A query that reads a table. A layer reads the table's appends, and an export reads its change feed.

    `fills` is the layer and name of the table that the query writes, or None for an export. `topic` is the
    export's topic, or None if there is no topic.
    """

    query: str
    fills: tuple[str, str] | None = None
    topic: str | None = None

    @property
    def is_export(self) -> bool:
        """Whether the query is an export, and therefore reads the change feed."""
        return self.fills is None


@dataclass(frozen=True)
class Held:
    """A reader, and when its oldest unread version was committed (UTC; None if gone from the log)."""

    reader: str
    since: datetime | None


def position_of(lake: Lake, reader: Reader, path: str) -> Position | None:
    """Return the reader's position in the table at the path, or None if it has never read the table."""
    if reader.fills is None:
        progress = sent.noted(lake.spark, path, reader.topic)
        is_this = progress is not None and progress.is_of(tables.table_id(lake.spark, path))
        return progress.position if progress is not None and is_this else None
    if not lake.exists(*reader.fills):
        return None
    return cuts.position_of(lake.spark, reader.query, lake.path(*reader.fills), path)


def held_by(lake: Lake, readers: Iterable[Reader], path: str) -> Held | None:
    """Return the reader with the oldest unread version, or None if all readers have read everything."""
    waiting = [held for reader in readers if (held := _unread(lake, reader, path)) is not None]
    return min(waiting, key=lambda held: held.since or _UNKNOWN, default=None)


def have_read(lake: Lake, readers: Iterable[Reader], path: str, upto: datetime) -> bool:
    """Return whether every reader has read all commits before `upto` (UTC)."""
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
        return None  # the reader has never read the table, and will start with its current rows
    newest, first_kept = tables.version_of(spark, path), tables.first_version(spark, path)
    if position.version < first_kept:
        return Held(reader.query, None)
    if reader.is_export:
        read = None if position.is_beginning else position.version - 1
        if read is not None and cuts.with_same_rows(spark, path, max(read, first_kept)) == newest:
            return None
    elif not cuts.has_unread(spark, path, position, newest + 1):
        return None
    return Held(reader.query, tables.committed_at(spark, path, min(position.version, newest)))
