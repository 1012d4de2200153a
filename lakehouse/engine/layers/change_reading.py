"""Read a table's change feed for an export."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from lakehouse.common.errors import PositionError
from lakehouse.engine.layers import Allow
from lakehouse.engine.layers.step import Batch
from lakehouse.engine.progress import parts
from lakehouse.engine.progress.parts import Part
from lakehouse.sinks.change import Span
from lakehouse.sinks.outgoing import as_inserted
from lakehouse.storage import tables
from lakehouse.storage.tables import Position, Progress


@dataclass(frozen=True, kw_only=True)
class FeedBatch(Batch):
    """A micro-batch of a table's change feed: all changes in `span`.

    `lost` is the last version whose changes were removed before they were sent, or None if no changes were
    removed.
    """

    span: Span
    lost: int | None = None


class ChangeReading:
    """A reader of a table's change feed for one query.

    `position` is None before the first changes are read.
    """

    def __init__(self, spark: SparkSession, query: str, table: str, path: str) -> None:
        self._spark = spark
        self._query = query
        self._table = table
        self._path = path
        self._table_id = tables.table_id(spark, path)
        self.sent_as = tables.sent_as(spark, path)
        self.position: Position | None = None
        self._ahead: Position | None = None
        self._until: int | None = None

    def begin(self, done: Progress | None, ahead: Position | None) -> None:
        """Start at the query's recorded progress (`done`).

        If a micro-batch was killed, `ahead` is its end, and the first read ends there.
        """
        self.position, self._ahead = None if done is None else done.position, ahead

    def end_here(self) -> None:
        """Read no changes beyond the current version."""
        self._until = tables.version_of(self._spark, self._path)

    def next(self, *, max_bytes: int) -> Part | None:
        """Return the next changes, or None if there are none.

        Raises PositionError if the table was recreated or replaced by an older copy.
        """
        snapshot = tables.snapshot(self._spark, self._path)
        newest = tables.version_in(snapshot)
        if tables.id_of(snapshot) != self._table_id:
            raise PositionError(f"{self._path} was deleted and recreated while {self._query} was running")
        sent = self._ahead or self.position
        if sent is not None and sent.version > newest + 1:
            raise PositionError(
                f"{self._query} has sent version {sent.version - 1} of {self._path}, whose newest "
                f"version is {newest}: an older copy was restored. Restore the newer copy; or delete the "
                f"table, run again to rebuild it, and then run once with --allow {Allow.RESEND}"
            )
        first = self.position or parts.beginning(self._spark, self._path)
        if self._ahead is not None:
            return parts.changes_between(self._spark, self._path, first, self._ahead)
        end = (newest if self._until is None else min(newest, self._until)) + 1
        while first.is_beginning or first.version < end:
            part = parts.changes(self._spark, self._path, first, end, max_bytes=max_bytes)
            if part.files:
                return part
            if part.first.is_beginning and self.position is None:
                return None  # an empty table may get rows before the next poll
            first = self.position = part.end  # nothing to send, for example after compaction
        return None

    def batch(self, part: Part) -> FeedBatch:
        """Return the changes in a part, including _change_type, _commit_version and _commit_timestamp."""
        if not part.first.is_beginning:
            first, last = part.first.version, part.end.version - 1
            return self._batch(part, tables.read_changes(self._spark, self._path, first, last))
        version = part.first.version
        at = tables.committed_at(self._spark, self._path, version)
        return self._batch(part, as_inserted(part.frame(self._spark, self._path), version, at))

    def rest(self, first: Position) -> FeedBatch | None:
        """Return the changes from a position onward despite missing files, or None if no file is missing.

        Up to the last version with a missing file, the newest state of each row that is still present is
        returned instead of the changes. Deletions up to that version cannot be returned.
        """
        spark, path = self._spark, self._path
        end = tables.version_of(spark, path) + 1
        if self._ahead is not None:  # the end of a killed micro-batch
            first, end = (self._ahead, end) if self._ahead.is_beginning else (first, self._ahead.version)
        begins = first.version + 1 if first.is_beginning else first.version
        lost = parts.last_gone(spark, path, begins, end)
        if first.is_beginning:
            lost = first.version if lost is None else lost
        if lost is None:
            return None
        rows = tables.read_files(spark, path, parts.files_since(spark, path, first, end - 1))
        feed = as_inserted(rows, lost, tables.committed_at(spark, path, end - 1))
        if lost + 1 < end:
            feed = feed.unionByName(tables.read_changes(spark, path, lost + 1, end - 1))
        return self._batch(Part(first, Position(end)), feed, lost)

    def _batch(self, part: Part, feed: DataFrame, lost: int | None = None) -> FeedBatch:
        is_resuming = self._ahead is not None  # the micro-batch must end where the killed one ended
        return FeedBatch(
            rows=feed,
            number=part.first.version if part.first.is_beginning else part.end.version - 1,
            reads=f"{self._table} {part}",
            size=0 if is_resuming else part.divisible_bytes,
            span=Span(self.sent_as, part.first, part.end),
            lost=lost,
        )

    def advance(self, position: Position) -> None:
        """Continue reading from a position."""
        self.position, self._ahead = position, None
