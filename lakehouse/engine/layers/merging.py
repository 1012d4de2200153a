"""Merge a micro-batch of clean rows into a gold table.

The micro-batch is first reduced as far as possible without the table (`preaggregate`), then folded into the
current rows (`fold`). New and changed rows are upserted in one commit, which also records the query's
position, so a rerun merges nothing twice. Side tables are written before the main table, because the main
table holds the state that they were computed from: after a crash between the two, the retry computes the side
tables again. If silver has lost rows, because a record corrects or deletes another, their keys are recomputed
from silver.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from lakehouse.engine.layers import recomputing
from lakehouse.engine.layers.recomputing import Moved
from lakehouse.engine.layers.step import Batch, BatchResult
from lakehouse.engine.ops_tables import retained
from lakehouse.engine.progress.finality import Finality, finality_at
from lakehouse.storage import tables
from lakehouse.storage.spark import internals
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import are_few, execute_for, executing_for, gathered, size_of
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
from lakehouse.storage.tables.pruning import MOST_SPANS, Between, Near, merged
from lakehouse.streams.definition import (
    EventClock,
    EventTimeProgress,
    GoldTable,
    MergedTable,
    SideTable,
    WallClock,
)
from lakehouse.streams.messages.layout import Equals

_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class _Facts:
    """Facts about a micro-batch's partials.

    The numbers of clean rows and of partials, the greatest event time, the first and last time, and the hours
    in between that have rows.
    """

    rows: int
    partials: int = 0
    reached: datetime | None = None
    first: datetime | None = None
    last: datetime | None = None
    hours: tuple[tuple[datetime, datetime], ...] = ()


@dataclass(frozen=True)
class _Folded:
    """New and changed rows, the partials behind them, and the keys to recompute; None if there are none."""

    rows: DataFrame
    partials: DataFrame
    to_recompute: DataFrame | None


@dataclass(frozen=True)
class _Input:
    """The input of a merge: a micro-batch's partials, facts about them, and the progress of time.

    `moves` are those for the table's commit. `beside` has the same for each side table, by name; None if the
    side table has already recorded them. `left` are the keys of rows that silver has lost or changed; None if
    there are none.
    """

    partials: DataFrame
    facts: _Facts
    progress: EventTimeProgress
    batch: Batch
    moves: tuple[Move, ...]
    beside: dict[str, tuple[Move, ...] | None]
    left: DataFrame | None = None


class Merge:
    """Merges micro-batches into a gold table and its side tables.

    `next_due` is the earliest time at which the wall clock changes a row; None for never. The ticker's first
    check sets it, and every write updates it, except with an EventClock: its wall clock stands still until
    nothing has been merged since `merged_at` (UTC; None: unknown) for long enough; then the table is checked
    again.
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
        self.next_due: datetime | None = None
        self.merged_at: datetime | None = None

    def merge(self, batch: Batch, now: datetime) -> BatchResult:
        """Merge a micro-batch of clean rows, and record its positions.

        Raises PositionError if the position recorded in the table is not where the micro-batch begins.
        """
        table, rows, spark = self._table, batch.rows, batch.rows.sparkSession
        few = are_few(size_bytes=size_of(rows)) if batch.count is None else are_few(rows=batch.count)
        execute_for(spark, few=few)
        beside = dict(zip((side.name for side in table.sides), batch.beside, strict=False))
        moved = Moved.of(table, gathered(rows, few=few))
        try:
            facts = self._facts(moved.touched)
            if not facts.rows:
                tables.note(spark, self._path, batch.moves)
                return BatchResult(0)
            progress, finality = self._progress(spark, facts, now)
            moves = (*batch.moves, *finality)
            given = _Input(moved.partials, facts, progress, batch, moves, beside, moved.left)
            written = tables.retry_on_conflict(lambda: self._merge(given))
        finally:
            moved.close()
        if self._merged is not None and facts.reached is not None:
            self._merged.advance(facts.reached)
        if self._finality is not None:
            self._finality = self._finality.after(finality)
        self.merged_at = now
        return BatchResult(facts.rows, written)

    def _merge(self, given: _Input) -> dict[str, int]:
        """Wait for the table's lease, fold the partials into the current rows, and write the differences."""
        partials, facts, progress = given.partials, given.facts, given.progress
        spark = partials.sparkSession
        commit = leases.begin(spark, self._path)
        commit.expect_settings(self._table.pinned_settings)
        commit.expect(given.moves)  # else a side table could get rows that the main table has already folded
        touched = self._touched(facts, progress, exactly=are_few(rows=facts.partials))
        near = commit.candidates(touched)
        few = are_few(rows=max(facts.partials, near.rows))
        with executing_for(spark, few=few):
            partials = gathered(partials, few=few)
            current = self._declared.of(commit.rows(near))
            current = gathered(current if touched is None else current.where(touched.condition()), few=few)
            to_recompute = self._to_recompute(partials, current, given)
            emptied: DataFrame | None = None
            standing: DataFrame | None = None
            if to_recompute is not None:
                execute_for(spark, few=False)  # all of silver is read
                keys, has_left = list(self._table.keys), given.left is not None
                anew = recomputing.made_anew(
                    self._lake, self._table, given.batch, to_recompute, in_windows=has_left
                )
                partials = partials.join(to_recompute, keys, "left_anti").unionByName(anew)
                if has_left:
                    standing = current.join(to_recompute, keys, "left_semi")
                    emptied = recomputing.emptied(self._table, standing, partials)
                current = current.join(to_recompute, keys, "left_anti")
            folded = self._table.fold(partials, current, progress)
            if standing is not None:
                folded = recomputing.settled(standing, folded, self._table)
            if emptied is not None:
                folded = folded.unionByName(emptied, allowMissingColumns=True)
            folded = folded.persist()
            try:
                return self._write(_Folded(folded, partials, to_recompute), commit, near, given)
            finally:
                folded.unpersist()

    def close_due(self, spark: SparkSession, now: datetime, clock: WallClock) -> BatchResult:
        """Change the rows that are due by the wall clock; a second call finds none."""
        commit, waits = tables.begin(spark, self._path), self._waiting(spark, clock)
        commit.expect_settings(self._table.pinned_settings)
        near = commit.candidates(Near((waits,)))
        due = clock.waits() & (F.col(clock.column) <= F.lit(self._latest_due(now, clock)))
        later = F.unix_micros(F.min(F.when(~due, F.col(clock.column))))
        with executing_for(spark, few=are_few(rows=near.rows)):
            waiting = commit.rows(near).where(clock.waits())
            rows, micros = waiting.agg(F.count_if(due), later).first() or (0, None)
        if rows:
            within = Near(((*waits, self._until_due(now, clock)),))
            tables.update(spark, self._path, due, clock.set_columns(), within=within)
        self.next_due = None if micros is None else shifted(from_micros(micros), clock.after)
        return BatchResult(rows, {self._table.name: rows})

    def _facts(self, partials: DataFrame) -> _Facts:
        table = self._table
        measures = {"rows": table.counted(), "partials": F.count(F.lit(1))}
        if isinstance(table.clock, EventClock):
            measures["reached"] = F.unix_micros(F.max(table.clock.column))
        if table.time_columns is not None:
            measures["first"] = F.unix_micros(F.min(table.time_columns[0]))
            measures["last"] = F.unix_micros(F.max(table.time_columns[1]))
            hours = (F.unix_micros(F.date_trunc("hour", end)) for end in table.time_columns)
            measures["hours"] = F.collect_set(F.struct(*hours))
        found = partials.agg(*(measure.alias(name) for name, measure in measures.items())).first()
        values = {} if found is None else found.asDict()
        rows, count = values.pop("rows", None) or 0, values.pop("partials", 0)
        lie = tuple((from_micros(first), from_micros(last)) for first, last in values.pop("hours", ()))
        times = {name: from_micros(micros) for name, micros in values.items() if rows}
        return _Facts(rows, count, hours=lie, **times)

    def _progress(
        self, spark: SparkSession, facts: _Facts, now: datetime
    ) -> tuple[EventTimeProgress, tuple[Move, ...]]:
        """Return the progress of time in the micro-batch, and the moves that record final rows."""
        clock = self._table.clock
        if self._merged is None or facts.reached is None or not isinstance(clock, EventClock):
            return EventTimeProgress(None, now), ()
        before, finality = self._merged.value(spark), self._finality_of(spark, clock)
        front = facts.reached if before is None else max(before, facts.reached)
        return finality.progress(before, front, clock), finality.moves(before, clock)

    def _finality_of(self, spark: SparkSession, clock: EventClock) -> Finality:
        if self._finality is None:
            snapshot = tables.snapshot(spark, self._path)
            self._finality = finality_at(spark, f"gold.{self._table.name}", snapshot, clock)
        return self._finality

    def _touched(self, facts: _Facts, progress: EventTimeProgress, *, exactly: bool) -> Near | None:
        """Return a condition for the rows that the micro-batch may change; None for all rows.

        It only skips files: the fold checks rows again. If a few late records are far from the others, the
        hours in between are skipped. Unless `exactly` is set, times are rounded outward to hours, so
        micro-batches of the same hour share generated code.
        """
        extent, reach = self._table.time_columns, self._table.merge_radius
        if extent is None or facts.first is None or facts.last is None:
            return None
        first, last = shifted(facts.first, -reach), shifted(facts.last, reach)
        if not exactly:
            first, last = _hour(first), shifted(_hour(last), _HOUR)
            progress = EventTimeProgress(
                progress.before and _hour(progress.before), shifted(_hour(progress.now), _HOUR)
            )
        spans = merged((shifted(begin, -reach), shifted(end, _HOUR + reach)) for begin, end in facts.hours)
        if not 1 < len(spans) <= MOST_SPANS:
            spans = [(first, last)]
        near = Near(tuple(_overlap(extent, begin, end) for begin, end in spans))
        return near | self._due(progress)

    def _due(self, progress: EventTimeProgress) -> Near:
        """Return a condition for the rows that may change merely because time passes."""
        clock = self._table.clock
        if isinstance(clock, EventClock):
            return Near(((Between(clock.due_column, *clock.due_span(progress)),),))
        if isinstance(clock, WallClock):
            return Near(((Between(*_only(clock.waits)), self._until_due(progress.now, clock)),))
        return Near(())

    def _waiting(self, spark: SparkSession, clock: WallClock) -> tuple[Between, ...]:
        """Return a condition for the rows that the wall clock has yet to change."""
        waits, by_events = Between(*_only(clock.waits)), self._table.clock
        front = None if self._merged is None else self._merged.value(spark)
        if front is None or not isinstance(by_events, EventClock):
            return (waits,)
        reached = self._finality_of(spark, by_events).progress(front, front, by_events)
        first, _ = by_events.due_span(reached)
        return waits, Between(by_events.due_column, first, None)

    def _until_due(self, now: datetime, clock: WallClock) -> Between:
        return Between(clock.column, None, self._latest_due(now, clock))

    def _latest_due(self, now: datetime, clock: WallClock) -> datetime:
        return shifted(now, -clock.after)

    def _may_need_recompute(self, spark: SparkSession, facts: _Facts, progress: EventTimeProgress) -> bool:
        """Return, without reading the table, whether some rows may need more than partials to be updated."""
        if self._table.needs_recompute is None:
            return False
        if self._table.state is None or facts.first is None:
            return True
        if self._merged is not None:  # the front itself: it clears state, the grace does not
            progress = EventTimeProgress(self._merged.value(spark), progress.now)
        unsettled_from = self._table.state.unsettled_from(progress)
        return unsettled_from is None or facts.first <= unsettled_from

    def _to_recompute(self, partials: DataFrame, current: DataFrame, given: _Input) -> DataFrame | None:
        """Return the keys of rows to recompute from silver; None if there are none."""
        keys, found = list(self._table.keys), [] if given.left is None else [given.left]
        needs = self._table.needs_recompute
        spark = partials.sparkSession
        if needs is not None and self._may_need_recompute(spark, given.facts, given.progress):
            found.append(needs(partials, current).select(*keys))
        return held(reduce(DataFrame.unionByName, found).distinct()) if found else None

    def _write(
        self,
        folded: _Folded,
        commit: Commit,
        near: Candidates,
        given: _Input,
    ) -> dict[str, int]:
        table = self._table
        beside = {side.name: self._write_side(side, folded, given) for side in table.sides}
        count, due = self._count_and_least_due(folded.rows)
        rows, moves = _standing(table, folded.rows), given.moves
        written = tables.upsert(rows, commit, near, table.keys, moves, count=count)
        if written.version is None:
            commit.finish(moves)
        else:
            self._advance_due(due)
        return {table.name: written.rows} | beside

    def _write_side(self, side: SideTable, folded: _Folded, given: _Input) -> int:
        """Write the micro-batch's rows of a side table.

        If an earlier attempt has written the side table but not the main table, the main table may have
        changed since. The side table's rows for the records of the micro-batch, and for all keys to
        recompute, are therefore compared first. Recomputed rows that retention has removed do not return.
        """
        path, rows = self._lake.path("gold", side.name), side.rows(folded.rows)
        commit = tables.begin(rows.sparkSession, path)
        moves = given.beside.get(side.name, ())
        is_again = moves is None
        theirs = [] if folded.to_recompute is None else [(folded.to_recompute, self._table.keys)]
        theirs += [(folded.partials.select(*side.keys).distinct(), side.keys)] if is_again else []
        if theirs:
            rows = retained.filter_kept(self._lake, side, rows)
            every = tables.read(rows.sparkSession, path).select(*side.schema.names)
            found = [every.join(keyed, list(keys), "left_semi") for keyed, keys in theirs]
            standing = reduce(DataFrame.unionByName, found).distinct()
            gone = standing.join(rows, list(side.keys), "left_anti").withColumn(DELETED, F.lit(True))
            changed = rows.subtract(standing.select(*rows.columns))
            rows = changed.withColumn(DELETED, F.lit(False)).unionByName(gone)
        rows = _standing(side, rows).persist()
        try:
            count, extent = _count_and_extent(side, rows)
            near = commit.candidates(extent)
            written = tables.upsert(rows, commit, near, side.keys, moves or (), count=count)
            if written.version is not None:
                given.beside[side.name] = None  # later steps may fail and be retried
            return written.rows
        finally:
            rows.unpersist()

    def _count_and_least_due(self, rows: DataFrame) -> tuple[int, datetime | None]:
        """Return the number of rows, and when the wall clock changes the first one; None for never."""
        clock = self._table.clock
        if not isinstance(clock, WallClock):
            return rows.count(), None
        least = F.unix_micros(F.min(F.when(clock.waits(), F.col(clock.column))))
        count, micros = rows.agg(F.count(F.lit(1)), least).first() or (0, None)
        return count, None if micros is None else shifted(from_micros(micros), clock.after)

    def _advance_due(self, due: datetime | None) -> None:
        known = [moment for moment in (self.next_due, due) if moment is not None]
        self.next_due = min(known, default=None)


def _only(wanted: Equals) -> tuple[str, str, str]:
    """Return the column of an equality condition, and its value as the first and the last one."""
    return wanted.column, str(wanted.value), str(wanted.value)


def _overlap(extent: tuple[str, str], begin: datetime, end: datetime) -> tuple[Between, Between]:
    """Select rows whose time range overlaps a span."""
    return Between(extent[0], None, end), Between(extent[1], begin, None)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def held(rows: DataFrame) -> DataFrame | None:
    """Evaluate rows now, and return them from the driver's JVM; None if there are none.

    Timestamps are kept as numbers: without a zone, one hour each autumn would be ambiguous.
    """
    times = [column.name for column in rows.schema if isinstance(column.dataType, TimestampType)]
    found = internals.held(rows.withColumns({name: F.unix_micros(name) for name in times}))
    return None if found is None else found.withColumns({name: F.timestamp_micros(name) for name in times})


def _count_and_extent(table: MergedTable, rows: DataFrame) -> tuple[int, Near | None]:
    """Return the number of rows, and a condition for the table's rows in the same time span.

    The condition is None for a table without times.
    """
    if table.time_columns is None:
        return rows.count(), None
    first, last = table.time_columns
    bounds = rows.agg(F.count(F.lit(1)), F.unix_micros(F.min(first)), F.unix_micros(F.max(last))).first()
    count, least, greatest = bounds or (0, None, None)
    if least is None or greatest is None:
        return count, Near(())
    return count, Near((_overlap((first, last), from_micros(least), from_micros(greatest)),))


def _standing(table: MergedTable, rows: DataFrame) -> DataFrame:
    """Return folded rows with the table's columns, and the mark of rows to delete."""
    kept = {*table.schema.names, DELETED}
    return rows.drop(*(name for name in rows.columns if name not in kept))
