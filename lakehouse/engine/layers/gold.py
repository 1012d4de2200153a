"""Gold: merge clean rows into user-facing tables, and close rows that are due by the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.types import TimestampType

from lakehouse.common.events import Kind, note
from lakehouse.engine.layers import silver
from lakehouse.engine.layers.merging import Merge
from lakehouse.engine.layers.step import Batch, BatchResult, Passed, StepMaker, TableStep
from lakehouse.engine.progress.finality import made_with
from lakehouse.engine.progress.reading import Filled, Reading
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec, leases
from lakehouse.storage.tables.entries import LogEntry, rows_of, total
from lakehouse.streams.definition import EventClock, GoldTable, MergedTable, Stream, WallClock

_LOOK_EVERY_S = 30.0
_RESTS = 2  # the pause after a tick, as a multiple of the tick's duration


def spec(table: MergedTable) -> TableSpec:
    """Return the specification of a gold table."""
    times = [column.name for column in table.schema if isinstance(column.dataType, TimestampType)]
    return TableSpec(
        "gold",
        table.name,
        table.schema,
        stats=tuple(dict.fromkeys((*table.keys, *times, *table.stats))),
        change_feed=True,
        is_merged=True,
        pinned_settings=table.pinned_settings,
        made_with=made_with(table),
        shape={"keys": ",".join(table.keys)}
        | ({} if table.window is None else {"window_s": table.window.recorded}),
        cluster_by=None if table.time_columns is None else table.time_columns[0],
        comment=table.comment,
    )


def steps(
    lake: Lake, stream: Stream, max_bytes: int, notice: Callable[[str], None] = lambda _text: None
) -> list[StepMaker]:
    """Return factories for the steps that fill the stream's gold tables, reading up to `max_bytes` at a time.

    `notice` is called for each commit in which another writer changed silver rows.
    """
    return [
        StepMaker(
            stream.name,
            "gold",
            f"gold.{table.name}",
            partial(_Merging, lake, stream, table, max_bytes, notice=notice),
        )
        for table in stream.gold
    ]


class _Merging(TableStep):
    """A step that merges micro-batches of clean rows into a gold table and its side tables."""

    def __init__(
        self, lake: Lake, stream: Stream, table: GoldTable, max_bytes: int, *, notice: Callable[[str], None]
    ) -> None:
        by_name = {source.table: source for source in stream.sources}
        sources = {f"silver.{name}": lake.ensure_source(silver.spec(by_name[name])) for name in table.reads}
        beside = tuple(Filled(f"gold.{side.name}", lake.ensure(spec(side))) for side in table.sides)
        path, name = lake.ensure(spec(table)), f"gold.{table.name}"
        follows = {f"silver.{one}" for one in table.reads if by_name[one].sequence_by is not None}
        tell = partial(_tell_foreign, stream, name, notice)
        reading = Reading(lake.spark, name, sources, Filled(name, path), beside, max_bytes, follows, tell)
        super().__init__("gold", reading, table.combine)
        self.merge_every_s = table.merge_every_s
        self._lake = lake
        self._path = path
        self._merge = Merge(lake, table)
        self._clock = table.clock
        if table.clock is not None:
            self.ticker = _Ticker(lake.spark, self._merge, path, table.clock)

    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:
        """Merge the rows. No rows are kept in memory, because an export reads the table's change feed."""
        yield Passed(self._merge.merge(batch, now))

    def end_here(self, filled: Collection[str]) -> None:
        """Read no further than the current end.

        In a catch-up, a table's idle time is measured from its last micro-batch, so that the run need not
        wait. In a live run, it is measured from the start of the run, because records that were sent earlier
        may still be unread.
        """
        super().end_here(filled)
        if isinstance(self._clock, EventClock):
            self._merge.merged_at = self._reading.moved_at()

    def is_held(self) -> bool:
        """Return whether a micro-batch would wait because another process holds the table's lease."""
        return leases.is_held(self._lake.spark, self._path)


def _tell_foreign(
    stream: Stream, query: str, notice: Callable[[str], None], table: str, entry: LogEntry
) -> None:
    """Report that another writer has changed silver rows, and that the query ignores the change."""
    info = next(entry.of("commitInfo"), {})
    operation, writer = str(info.get("operation") or "unknown"), str(info.get("engineInfo") or "unknown")
    gone = total([rows_of(file) for file in entry.of("remove")])
    rows = "" if gone is None else f", in files with {gone:,} rows"
    text = (
        f"another writer changed {table} in version {entry.version} ({writer}: {operation}{rows}). "
        f"{query} ignores that change. `lakehouse audit` lists the differences, and `lakehouse rebuild "
        "silver` repairs them"
    )
    details = {"version": entry.version, "operation": operation, "engineInfo": writer, "rows": gone}
    note(Kind.REFUSAL, text, stream=stream.name, layer="silver", table=table, details=details)
    notice(text)


class _Ticker:
    """Periodic work that closes the rows that are due by the wall clock.

    The merge reports when the rows that it has written are due. Because a rebuild or a user's statement can
    add other rows, the ticker checks again whenever the table has a new version. If the table has an
    EventClock, the ticker changes no rows until the table is idle. A tick can rewrite large files to close
    only a few rows, so ticks use at most a third of the time.
    """

    def __init__(self, spark: SparkSession, merge: Merge, path: str, clock: EventClock | WallClock) -> None:
        self._spark = spark
        self._merge = merge
        self._path = path
        self._clock = clock.when_idle if isinstance(clock, EventClock) else clock
        self._idle_after = clock.idle_after if isinstance(clock, EventClock) else timedelta(0)
        self._looked: float | None = None  # by a monotonic clock, like `_rests_until`
        self._rests_until = 0.0
        self._version = -1

    def is_due(self, now: datetime) -> bool:
        """Return whether a row could be due.

        The result is true for every idle table that has not been checked yet.
        """
        if not self._is_idle(now) or time.monotonic() < self._rests_until:
            return False
        if self._looked is None or (self._merge.next_due is not None and self._merge.next_due <= now):
            return True
        if time.monotonic() - self._looked < _LOOK_EVERY_S:
            return False
        return tables.version_of(self._spark, self._path) != self._version

    def tick(self, now: datetime) -> BatchResult:
        """Close the rows that are due.

        If another process holds the table's lease, leave them to a later tick.
        """
        if leases.is_held(self._spark, self._path):
            return BatchResult(0)
        began = time.monotonic()
        self._version = tables.version_of(self._spark, self._path)
        result = self._merge.close_due(self._spark, now, self._clock)
        self._looked = time.monotonic()
        self._rests_until = self._looked + _RESTS * (self._looked - began)
        return result

    def _is_idle(self, now: datetime) -> bool:
        since = self._merge.merged_at
        if since is None or since > now:  # a clock that was set back must not delay the table
            self._merge.merged_at = since = now
        return now - since >= self._idle_after
