"""Read a table's change feed for an export."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakehouse.common.errors import PositionError, TableError
from lakehouse.engine.layers import Allow
from lakehouse.engine.layers.export_position import Begun
from lakehouse.engine.layers.step import Batch, BatchResult
from lakehouse.engine.progress import parts
from lakehouse.engine.progress.parts import Part
from lakehouse.sinks.change import Span
from lakehouse.sinks.outgoing import as_inserted
from lakehouse.storage import tables
from lakehouse.storage.spark.query_errors import are_files_gone
from lakehouse.storage.tables import Position


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

    `position` is None before the first changes are read. `allow` says what users have allowed.
    """

    def __init__(
        self, spark: SparkSession, query: str, table: str, path: str, allow: Collection[Allow]
    ) -> None:
        self._spark = spark
        self._query = query
        self._table = table
        self._path = path
        self._allow = allow
        self._table_id = tables.table_id(spark, path)
        self.sent_as = tables.sent_as(spark, path)
        self.position: Position | None = None
        self._ahead: Position | None = None
        self._until: int | None = None
        self._replaces = False

    def begin(self, begun: Begun) -> None:
        """Start at the recorded progress; if a micro-batch was killed, the first read ends where it ended.

        If this progress replaces another table's, the first part can be empty, so that it is recorded.
        """
        self.position = None if begun.progress is None else begun.progress.position
        self._ahead, self._replaces = begun.ahead, begun.replaces

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
            if part.files or self._replaces:
                return part
            if part.first.is_beginning and self.position is None:
                return None  # an empty table may get rows before the next poll
            first = self.position = part.end  # nothing to send, for example after compaction
        return None

    def batch(self, part: Part) -> FeedBatch:
        """Return the changes in a part, including _change_type, _commit_version and _commit_timestamp.

        If VACUUM has removed files, returns the newest states instead (`FeedBatch.lost`), or raises
        TableError unless resending rows is allowed.
        """
        try:
            return self._changes(part)
        except (PySparkException, Py4JError) as error:
            return self._rest_from(part.first, error)

    def written(self, batch: FeedBatch, write: Callable[[FeedBatch], BatchResult]) -> BatchResult:
        """Write a batch; if its files are gone by then, write the rest. Raises TableError like `batch`."""
        try:
            return write(batch)
        except (PySparkException, Py4JError) as error:
            if batch.lost is not None:
                raise
            return write(self._rest_from(batch.span.before, error))

    def _rest_from(self, first: Position, error: Exception) -> FeedBatch:
        rest = self._rest(first) if are_files_gone(error) else None
        if rest is None:
            raise error
        if Allow.RESEND not in self._allow:
            raise TableError(
                f"{self._query} has not sent changes to {self._table} up to version {rest.lost}, and VACUUM "
                f"has removed them. Run once with --allow {Allow.RESEND} to send the newest state of every "
                "row that may have changed since; deletions up to that version are not sent"
            ) from error
        return rest

    def _changes(self, part: Part) -> FeedBatch:
        if not part.first.is_beginning:
            first, last = part.first.version, part.end.version - 1
            return self._batch(part, tables.read_changes(self._spark, self._path, first, last))
        version = part.first.version
        at = tables.committed_at(self._spark, self._path, version)
        return self._batch(part, as_inserted(part.frame(self._spark, self._path), version, at))

    def _rest(self, first: Position) -> FeedBatch | None:
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
        self.position, self._ahead, self._replaces = position, None, False
