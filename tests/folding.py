"""A stream's tables in plain frames: each micro-batch judged, reduced and folded, without Delta or a query.

What `lakehouse.stream` promises the functions of a stream is done here in the plainest way: `judge` gets the
watermark of what has been accepted before, `fold` the rows that are within reach or due, a row replaces the
one with its key, one marked DELETED goes, and keys that need it are made anew from all clean rows so far.
Tests of transformations need no more.

    folding = Folding(spark, TRANSACTIONS, settings)
    folding.take({"transactions": records}, landed_at=noon)
    folding.rows("gold.user_transactions_5m")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.layers import bronze
from lakehouse.records.validation import clean_schema, filter_clean, filter_dead, judge, watermark_of
from lakehouse.settings import Settings
from lakehouse.stream import (
    EventClock,
    EventTimeProgress,
    GoldTable,
    MergedTable,
    Source,
    Stream,
    WallClock,
)
from lakehouse.tables import DELETED
from tests import pipeline
from tests.frames import local_frame
from tests.pipeline import DEAD_LETTERS, Raw, Row
from tests.streams import under

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Folding:
    """A stream that has taken some micro-batches; `changed` is what the last fold of each table returned.

    The settings go over those with which the stream was made.
    """

    def __init__(self, spark: SparkSession, stream: Stream, settings: Settings) -> None:
        self.stream = stream = under(settings, stream)
        self.settings = settings
        self.changed: dict[str, DataFrame] = {}
        self._spark = spark
        self._dead: list[DataFrame] = []
        self._clean = {
            source.table: [spark.createDataFrame([], clean_schema(source.contract))]
            for source in stream.sources
        }
        self._gold = {table.name: spark.createDataFrame([], table.schema) for table in stream.tables}
        self._offsets = dict.fromkeys(self._clean, 0)
        self._accepted: dict[str, datetime | None] = {}
        self._merged: dict[str, datetime | None] = {}

    def take(
        self, records: Mapping[str, Sequence[Raw]], *, landed_at: datetime, now: datetime | None = None
    ) -> None:
        """Take one micro-batch, the records of each source by its table's name."""
        clean = {
            source.table: self._judged(source, records.get(source.table, ()), landed_at)
            for source in self.stream.sources
        }
        for table in self.stream.gold:
            self._merge(table, table.combine({name: clean[name] for name in table.reads}), now or landed_at)

    def tick(self, now: datetime) -> None:
        """Change what is due by the wall clock, where no record has come for a long time."""
        for table in self.stream.gold:
            clock = table.wall_clock
            if clock is not None:
                rows, due = self._gold[table.name], _waits_at(now, clock)
                becomes = clock.set_columns()
                self._gold[table.name] = rows.select(
                    *(
                        F.when(due, becomes[name]).otherwise(F.col(name)).alias(name)
                        if name in becomes
                        else name
                        for name in rows.columns
                    )
                ).localCheckpoint()

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table of silver or gold, or the dead letters, as `pipeline.rows_of` does."""
        frame = pipeline.in_micros(self._frame(table))
        return [row.asDict(recursive=True) for row in frame.collect()]

    def _frame(self, table: str) -> DataFrame:
        layer, name = table.split(".")
        if layer == "gold":
            return self._gold[name]
        return reduce(DataFrame.unionByName, self._dead if table == DEAD_LETTERS else self._clean[name])

    def _judged(self, source: Source, records: Sequence[Raw], landed_at: datetime) -> DataFrame:
        """Return the records that are clean by the watermark of all before; the others are dead letters."""
        first_offset = self._offsets[source.table]
        self._offsets[source.table] += len(records)
        rows = pipeline.landed(
            self.settings, records, landed_at=landed_at, first_offset=first_offset, source=source
        )
        if not rows:
            return self._clean[source.table][0]
        reached = self._accepted.get(source.table)
        watermark = watermark_of(reached, source.allowed_lateness_s)
        frame = local_frame(self._spark, rows, bronze.SCHEMA)
        judged = judge(frame, source, watermark).localCheckpoint()
        clean = filter_clean(judged)
        self._dead.append(filter_dead(judged))
        self._clean[source.table].append(clean)
        self._accepted[source.table] = _later(reached, _greatest(clean, F.max("event_time")))
        return clean

    def _merge(self, table: GoldTable, clean: DataFrame, now: datetime) -> None:
        partials = table.preaggregate(clean).localCheckpoint()
        if partials.isEmpty():
            return
        progress = EventTimeProgress(None, now)
        if isinstance(table.clock, EventClock):
            before = self._merged.get(table.name)
            reached = _later(before, _greatest(partials, F.max(table.clock.column)))
            assert reached is not None
            progress = EventTimeProgress(before, reached)
            self._merged[table.name] = reached
        current = self._gold[table.name].where(
            self._within_reach(table, partials) | self._due(table, progress)
        )
        keys = list(table.keys)
        to_recompute = current.select(*keys).limit(0)
        if table.needs_recompute is not None:
            to_recompute = table.needs_recompute(partials, current).select(*keys).distinct()
        to_recompute = to_recompute.localCheckpoint()
        if not to_recompute.isEmpty():
            history = table.combine({name: self._frame(f"silver.{name}") for name in table.reads})
            anew = table.preaggregate(history).withColumn("recomputed", F.lit(True))
            whole = anew.join(to_recompute, keys, "left_semi")
            partials = partials.join(to_recompute, keys, "left_anti").unionByName(whole).localCheckpoint()
            current = current.join(to_recompute, keys, "left_anti")
        folded = table.fold(partials, current, progress).localCheckpoint()
        self._put(table, folded)
        for side in table.sides:
            self._gold[side.name] = self._gold[side.name].join(to_recompute, keys, "left_anti")
            self._put(side, side.rows(folded))

    def _within_reach(self, table: GoldTable, partials: DataFrame) -> Column:
        if table.time_columns is None:
            return F.lit(True)
        start, end = table.time_columns
        reach = table.merge_radius
        first, last = _greatest(partials, F.min(start)), _greatest(partials, F.max(end))
        assert first is not None
        assert last is not None
        return (F.col(start) <= F.lit(last + reach)) & (F.col(end) >= F.lit(first - reach))

    def _due(self, table: GoldTable, progress: EventTimeProgress) -> Column:
        clock = table.clock
        if isinstance(clock, EventClock):
            return clock.due(progress)
        if isinstance(clock, WallClock):
            return _waits_at(progress.now, clock)
        return F.lit(False)

    def _put(self, table: MergedTable, rows: DataFrame) -> None:
        self.changed[table.name] = rows
        keys = list(table.keys)
        untouched = self._gold[table.name].join(rows.select(*keys).distinct(), keys, "left_anti")
        staying = rows.where(~F.col(DELETED)) if DELETED in rows.columns else rows
        put = untouched.unionByName(staying.select(*table.schema.names))
        self._gold[table.name] = put.localCheckpoint()


def _waits_at(now: datetime, clock: WallClock) -> Column:
    return clock.waits() & (F.col(clock.column) <= F.lit(now - clock.after))


def _greatest(frame: DataFrame, time: Column) -> datetime | None:
    """Return an aggregate of times, by way of its microseconds: some local times are ambiguous."""
    found = frame.agg(F.unix_micros(time).alias("us")).first()
    return None if found is None or found.us is None else EPOCH + timedelta(microseconds=found.us)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((moment for moment in (one, other) if moment is not None), default=None)
