"""Merge a micro-batch of clean rows into a gold table.

The micro-batch is first reduced as far as possible without reading the table (`preaggregate`), and then
folded into the current rows (`fold`). New and changed rows are upserted in one commit, which also records the
query's position, so a rerun merges nothing twice. Side tables are computed from state in the main table, so
they are written before the main table. After a crash between the two commits, a retry can therefore compute
them again. If a record corrected or deleted other records, so that silver has lost rows, the keys of these
rows are recomputed from silver. `folds` computes the changes; this module reads and writes the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import folds, recomputing
from lakehouse.engine.layers.folds import Facts, Folded, Given
from lakehouse.engine.layers.recomputing import Moved
from lakehouse.engine.layers.step import Batch, BatchResult
from lakehouse.engine.ops_tables import retained
from lakehouse.engine.progress.finality import Finality, finality_at
from lakehouse.storage import tables
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import Amount, amount_of, execute_for, executing_for, gathered, size_of
from lakehouse.storage.tables import (
    DELETED,
    Candidates,
    Commit,
    HighWaterMark,
    Lake,
    Move,
    from_micros,
    leases,
    shifted,
)
from lakehouse.storage.tables.pruning import Between, Near
from lakehouse.streams.definition import (
    EventClock,
    EventTimeProgress,
    GoldTable,
    MergedTable,
    SideTable,
    WallClock,
)


@dataclass(frozen=True)
class _Input:
    """The input of a merge: a micro-batch, its partials, and the other input for the fold.

    `moves` are the moves that the gold table must record. `beside` contains the side tables' moves, keyed by
    table name; None means that the side table has already recorded its moves.
    """

    partials: DataFrame
    given: Given
    batch: Batch
    moves: tuple[Move, ...]
    beside: dict[str, tuple[Move, ...] | None]


class Merge:
    """Merges micro-batches into a gold table and its side tables.

    `next_due` is the earliest time at which the wall clock changes a row; None means never. The ticker's
    first check sets it, and every write updates it. If the table has an EventClock, the wall clock has no
    effect until the table is idle, which means that enough time has passed since the last merge, at
    `merged_at` (UTC; None if unknown). The table is then checked again.
    """

    def __init__(self, lake: Lake, table: GoldTable) -> None:
        self._lake = lake
        self._table = table
        self._path = lake.path("gold", table.name)
        self._declared = Columns({name: F.col(name) for name in table.schema.names})
        self._merged = (
            HighWaterMark(self._path, table.clock.column) if isinstance(table.clock, EventClock) else None
        )
        self._finality: Finality | None = None
        self._stateless_to: datetime | None = None
        self._is_looked_up = False
        self.next_due: datetime | None = None
        self.merged_at: datetime | None = None

    def merge(self, batch: Batch, now: datetime) -> BatchResult:
        """Merge a micro-batch of clean rows, and record its positions.

        Raises PositionError if the micro-batch does not begin at the position recorded in the table.
        """
        table, rows, spark = self._table, batch.rows, batch.rows.sparkSession
        amount = amount_of(size_bytes=size_of(rows)) if batch.count is None else amount_of(rows=batch.count)
        execute_for(spark, amount)
        beside = dict(zip((side.name for side in table.sides), batch.beside, strict=False))
        moved = Moved.of(table, gathered(rows, amount))
        try:
            facts = Facts.of(table, moved.touched)
            if not facts.rows:
                tables.note(spark, self._path, batch.moves)
                return BatchResult(0)
            progress, finality = self._progress(spark, facts, now)
            moves = (*batch.moves, *finality)
            front = self._front(spark)
            self._look_up_stateless(spark, front)
            given = Given(facts, progress, front, moved.left, self._stateless_to)
            coming = _Input(moved.partials, given, batch, moves, beside)
            written = tables.retry_on_conflict(lambda: self._merge(coming))
        finally:
            moved.close()
        if self._merged is not None and facts.reached is not None:
            self._merged.advance(facts.reached)
        if moved.left is not None:
            self._stateless_to = self._front(spark)
        if self._finality is not None:
            self._finality = self._finality.after(finality)
        self.merged_at = now
        return BatchResult(facts.rows, written)

    def _merge(self, coming: _Input) -> dict[str, int]:
        """Wait for the table's lease, fold the partials into the current rows, and write the changes."""
        table, partials, given = self._table, coming.partials, coming.given
        spark, facts = partials.sparkSession, given.facts
        commit = leases.begin(spark, self._path)
        commit.expect_settings(table.pinned_settings)
        commit.expect(coming.moves)  # otherwise, a side table could get rows that were already merged
        touched = folds.touched(table, facts, given.progress, exactly=True)
        near = commit.candidates(touched)
        amount = amount_of(rows=max(facts.partials, near.rows))
        has_left = given.left is not None
        made_anew = partial(recomputing.made_anew, self._lake, table, coming.batch, in_windows=has_left)
        with executing_for(spark, amount):
            partials = gathered(partials, amount)
            current = self._declared.of(commit.rows(near))
            if amount is not Amount.FEW:
                touched = folds.touched(table, facts, given.progress, exactly=False)
            current = gathered(current if touched is None else current.where(touched.condition()), amount)
            folded = folds.folded(table, partials, current, given, made_anew)
            folded.rows.persist()
            try:
                return self._write(folded, commit, near, coming)
            finally:
                folded.rows.unpersist()

    def close_due(self, spark: SparkSession, now: datetime, clock: WallClock) -> BatchResult:
        """Update the rows that are due by the wall clock. A second call finds no such rows."""
        commit, waits = tables.begin(spark, self._path), self._waiting(spark, clock)
        commit.expect_settings(self._table.pinned_settings)
        near = commit.candidates(Near((waits,)))
        until_due = folds.until_due(clock, now)
        due = clock.waits() & until_due.condition()
        later = F.unix_micros(F.min(F.when(~due, F.col(clock.column))))
        with executing_for(spark, amount_of(rows=near.rows)):
            waiting = commit.rows(near).where(clock.waits())
            rows, micros = waiting.agg(F.count_if(due), later).first() or (0, None)
        if rows:
            within = Near(((*waits, until_due),))
            tables.update(spark, self._path, due, clock.set_columns(), within=within)
        self.next_due = None if micros is None else shifted(from_micros(micros), clock.after)
        return BatchResult(rows, {self._table.name: rows})

    def _progress(
        self, spark: SparkSession, facts: Facts, now: datetime
    ) -> tuple[EventTimeProgress, tuple[Move, ...]]:
        """Return the micro-batch's event-time progress, and the moves that record which rows are final."""
        clock = self._table.clock
        if self._merged is None or facts.reached is None or not isinstance(clock, EventClock):
            return EventTimeProgress(None, now), ()
        before, finality = self._front(spark), self._finality_of(spark, clock)
        front = facts.reached if before is None else max(before, facts.reached)
        return finality.progress(before, front, clock), finality.moves(before, clock)

    def _look_up_stateless(self, spark: SparkSession, front: datetime | None) -> None:
        """Look once for the last row that an earlier process may have recomputed, so that it lacks state."""
        state, times = self._table.state, self._table.time_columns
        if self._is_looked_up or front is None or state is None or times is None:
            return
        since = state.unsettled_from(EventTimeProgress(front, front)) or front
        lacks = reduce(Column.__or__, (F.col(name).isNull() for name in state.columns))
        rows = tables.read(spark, self._path).where(lacks & (F.col(times[0]) > F.lit(since)))
        found = rows.agg(F.unix_micros(F.max(times[0])).alias("last")).first()
        self._stateless_to = None if found is None or found.last is None else from_micros(found.last)
        self._is_looked_up = True

    def _front(self, spark: SparkSession) -> datetime | None:
        """Return the greatest event time merged, or None if there is none or the table has no EventClock."""
        return None if self._merged is None else self._merged.value(spark)

    def _finality_of(self, spark: SparkSession, clock: EventClock) -> Finality:
        if self._finality is None:
            snapshot = tables.snapshot(spark, self._path)
            self._finality = finality_at(spark, f"gold.{self._table.name}", snapshot, clock)
        return self._finality

    def _waiting(self, spark: SparkSession, clock: WallClock) -> tuple[Between, ...]:
        """Return a condition for the rows that are waiting for the wall clock."""
        waits, by_events, front = folds.waits(clock), self._table.clock, self._front(spark)
        if front is None or not isinstance(by_events, EventClock):
            return (waits,)
        reached = self._finality_of(spark, by_events).progress(front, front, by_events)
        first, _ = by_events.due_span(reached)
        return waits, Between(by_events.due_column, first, None)

    def _write(self, folded: Folded, commit: Commit, near: Candidates, coming: _Input) -> dict[str, int]:
        table = self._table
        beside = {side.name: self._write_side(side, folded, coming) for side in table.sides}
        count, due = self._count_and_least_due(folded.rows)
        rows, moves = _standing(table, folded.rows), coming.moves
        written = tables.upsert(rows, commit, near, table.keys, moves, count=count)
        if written.version is None:
            commit.finish(moves)
        else:
            self._advance_due(due)
        return {table.name: written.rows} | beside

    def _write_side(self, side: SideTable, folded: Folded, coming: _Input) -> int:
        """Write the micro-batch's rows to a side table.

        Recomputed rows are not written if retention has already deleted them.
        """
        path, rows = self._lake.path("gold", side.name), side.rows(folded.rows)
        commit = tables.begin(rows.sparkSession, path)
        moves = coming.beside.get(side.name, ())
        theirs = folds.to_compare(self._table, side, folded, is_again=moves is None)
        if theirs:
            rows = retained.filter_kept(self._lake, side, rows)
            rows = folds.differences(side, rows, tables.read(rows.sparkSession, path), theirs)
        rows = _standing(side, rows).persist()
        try:
            count, extent = _count_and_extent(side, rows)
            near = commit.candidates(extent)
            written = tables.upsert(rows, commit, near, side.keys, moves or (), count=count)
            if written.version is not None:
                coming.beside[side.name] = None  # later steps may fail and be retried
            return written.rows
        finally:
            rows.unpersist()

    def _count_and_least_due(self, rows: DataFrame) -> tuple[int, datetime | None]:
        """Return the number of rows, and when the wall clock will first change a row (None if never)."""
        clock = self._table.clock
        if not isinstance(clock, WallClock):
            return rows.count(), None
        least = F.unix_micros(F.min(F.when(clock.waits(), F.col(clock.column))))
        count, micros = rows.agg(F.count(F.lit(1)), least).first() or (0, None)
        return count, None if micros is None else shifted(from_micros(micros), clock.after)

    def _advance_due(self, due: datetime | None) -> None:
        known = [moment for moment in (self.next_due, due) if moment is not None]
        self.next_due = min(known, default=None)


def _count_and_extent(table: MergedTable, rows: DataFrame) -> tuple[int, Near | None]:
    """Return how many rows there are, and a condition for all rows of the table in the same time span.

    The condition is None for a table without times.
    """
    if table.time_columns is None:
        return rows.count(), None
    first, last = table.time_columns
    bounds = rows.agg(F.count(F.lit(1)), F.unix_micros(F.min(first)), F.unix_micros(F.max(last))).first()
    count, least, greatest = bounds or (0, None, None)
    if least is None or greatest is None:
        return count, Near(())
    return count, Near((folds.overlap((first, last), from_micros(least), from_micros(greatest)),))


def _standing(table: MergedTable, rows: DataFrame) -> DataFrame:
    """Return folded rows with only the table's columns and the mark for deleted rows."""
    kept = {*table.schema.names, DELETED}
    return rows.drop(*(name for name in rows.columns if name not in kept))
