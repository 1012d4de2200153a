"""Retention: rows older than their table's `kept_days` are deleted, unless a row that stays needs them.

These rows are deleted, a whole day (UTC) at a time. The limit is the end of the last deleted day.

    bronze        records that landed before the limit, once silver has read them, by today's ids
    silver        rows with an event time before the limit whose record is no longer in bronze; only if every
                  gold table made of them has times, and no row that a later record is counted with
    gold          final rows whose time ends before the limit, which no later record can change; the export
                  sends their deletion like any other
    dead letters  replayed and discarded letters whose record is no longer in bronze; open letters stay
    ops           rows from before the limit

The limit is noted in ops.retention first (`lakehouse.ops.retained`): audits and rebuilds leave out the
rows before it. A rerun deletes nothing. If retention is killed, run it again to finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.layers import silver
from lakehouse.maintenance.fold_state import out_of_reach
from lakehouse.maintenance.readers import Reader, have_read
from lakehouse.ops import retained
from lakehouse.ops.retained import TakenRows
from lakehouse.records.dead_letters import DISCARDED, REPLAYED, RESENT
from lakehouse.records.identity import DUPLICATE, SUPERSEDED
from lakehouse.records.offsets import OffsetRange, within
from lakehouse.records.validation import OWN_TIME
from lakehouse.stream import GoldTable, MergedTable, Source, Stream
from lakehouse.tables import Lake, TableSpec, Why

_LANDING = timedelta(hours=1)  # between a record's landing time and its commit, at most


@dataclass(frozen=True)
class Cut:
    """The rows of a table that are to go, and what is noted of them; null: nothing, for tables of ops.

    `id_column` has the ids that are noted, too; null: none.
    """

    where: Column
    taken: TakenRows | None
    id_column: str | None = None


CutMaker = Callable[[Lake, datetime], Cut | None]
"""Makes the cut of a table as of now (UTC); null where nothing may go."""


def take(lake: Lake, spec: TableSpec, cut: Cut, now: datetime, *, dry_run: bool) -> int:
    """Delete the rows of a cut and return how many; a dry run only counts them."""
    rows = lake.read(spec.layer, spec.name).where(cut.where).count()
    if not rows or dry_run:
        return rows
    if cut.taken is not None:
        retained.note(lake, spec.layer, spec.name, cut.taken, now)
    if cut.id_column is not None:
        going = lake.read(spec.layer, spec.name).where(cut.where)
        retained.note_ids(lake, spec.name, going.select(cut.id_column))
    return tables.delete(lake.spark, lake.path(spec.layer, spec.name), cut.where, why=Why.RETAINED)


def bronze_cut(source: Source, days: int) -> CutMaker:
    """Cut by the time of landing: of each partition, all offsets up to the last one that landed before."""
    reader = Reader(silver.query_name(source), ("silver", source.table))

    def make(lake: Lake, now: datetime) -> Cut | None:
        before, path = _midnight(now - timedelta(days=days)), lake.path("bronze", source.table)
        if not have_read(lake, [reader], path, before + _LANDING):
            return None
        if lake.is_made_otherwise(silver.spec(source)):  # a rebuild has still to judge them by other ids
            return None
        old = tables.read(lake.spark, path).where(F.col("ingested_at") < F.lit(before))
        taken = retained.taken_of(lake, "bronze", source.table)
        gone = _joined(taken.gone, _last_of(old))
        front = retained.latest((taken.front, _front_of(lake, source, gone)))
        return Cut(within(gone), TakenRows(gone=gone, front=front))

    return make


def _front_of(lake: Lake, source: Source, gone: Sequence[OffsetRange]) -> datetime | None:
    """Return the greatest own time (UTC) of rows of silver whose records lie at some offsets; null: none.

    Silver's commits note the front of records that are no longer rows.
    """
    rows = lake.read("silver", source.table).where(within(gone))
    found = rows.agg(F.unix_micros(F.max(OWN_TIME)).alias("micros")).first()
    return None if found is None or found.micros is None else tables.from_micros(found.micros)


def silver_cut(stream: Stream, source: Source, days: int) -> CutMaker:
    """Cut by event time, among rows whose record has left bronze."""

    def make(lake: Lake, now: datetime) -> Cut | None:
        gone = retained.taken_of(lake, "bronze", source.table).gone
        reading = [table for table in stream.gold if source.table in table.reads]
        before = _cut_for(lake, stream, reading, now - timedelta(days=days))
        if before is None or not gone:
            return None
        id_column = None if source.sequence_by is None else source.id_column
        return Cut((F.col("event_time") < F.lit(before)) & within(gone), TakenRows(before), id_column)

    return make


def gold_cut(stream: Stream, table: MergedTable, made_by: GoldTable, days: int) -> CutMaker:
    """Cut by the row's last time."""

    def make(lake: Lake, now: datetime) -> Cut | None:
        before = _cut_for(lake, stream, [made_by], now - timedelta(days=days))
        if before is None or table.time_columns is None:
            return None
        is_final = F.lit(True) if table.final is None else table.final()
        return Cut((F.col(table.time_columns[1]) < F.lit(before)) & is_final, TakenRows(before))

    return make


def letters_cut(streams: Sequence[Stream], days: int) -> CutMaker:
    """Cut by the time at which a letter was written, among those that are settled."""

    def make(lake: Lake, now: datetime) -> Cut | None:
        of = [source for stream in streams for source in stream.sources]
        gone = (
            (F.col("job") == silver.query_name(source))
            & within(retained.taken_of(lake, "bronze", source.table).gone)
            for source in of
        )
        settled = F.col("status").isin(REPLAYED, DISCARDED, RESENT, DUPLICATE, SUPERSEDED)
        old = F.col("first_seen") < F.lit(_midnight(now - timedelta(days=days)))
        return Cut(settled & old & reduce(Column.__or__, gone, F.lit(False)), None)

    return make


def ops_cut(column: str, days: int) -> CutMaker:
    """Cut by a column of times."""
    return lambda _lake, now: Cut(F.col(column) < F.lit(_midnight(now - timedelta(days=days))), None)


def _cut_for(lake: Lake, stream: Stream, made: Iterable[GoldTable], oldest: datetime) -> datetime | None:
    """Return the last midnight before `oldest` that no row which may still change reaches back to."""
    bounds = [oldest]
    for table in made:
        reached = out_of_reach(lake, stream, table)
        if reached is None:
            return None
        bounds.append(reached - table.merge_radius)
    return _midnight(min(bounds))


def _midnight(moment: datetime) -> datetime:
    return datetime.combine(moment.astimezone(UTC).date(), time(), UTC)


def _last_of(rows: DataFrame) -> tuple[OffsetRange, ...]:
    found = rows.groupBy("topic", "partition").agg(F.max("offset").alias("last")).collect()
    return tuple(OffsetRange(row.topic, row.partition, 0, row.last) for row in found)


def _joined(*parts: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    last = dict[tuple[str, int], int]()
    for one in (one for part in parts for one in part):
        place = one.topic, one.partition
        last[place] = max(one.last, last.get(place, -1))
    return tuple(OffsetRange(topic, partition, 0, end) for (topic, partition), end in sorted(last.items()))
