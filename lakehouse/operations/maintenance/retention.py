"""Retention: delete rows older than `maintenance.keep_rows` allows, unless other rows depend on them.

Whole days (UTC) are deleted. The limit is the end of the last deleted day.

    bronze        records that landed before the limit, once silver has read them with current id settings
    silver        rows with an event time before the limit, if their record is no longer in bronze and gold
                  does not need them for later records
    gold          final rows that end before the limit and that no later record can change; the export sends
                  these deletions like any others
    dead letters  settled letters whose record is no longer in bronze; open letters are kept. With
                  `sequence_by`, later records are compared with letters that have the same id. Such letters
                  are kept while a silver row with this id can still change.
    ops           rows from before the limit

Before any rows are deleted, the limit is recorded in ops.retention (`lakehouse.engine.ops_tables.retained`).
Audits and rebuilds skip the rows before the limit. With `sequence_by`, the ids of deleted rows and letters
are recorded in ops.retained_ids, with the last deleted sequence. Silver waits for the deletion. A rerun
deletes nothing more. If retention is killed, rerun it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.layers import silver
from lakehouse.engine.layers.holding import holding
from lakehouse.engine.layers.letters import are_processed
from lakehouse.engine.ops_tables import retained
from lakehouse.engine.ops_tables.retained import TakenRows
from lakehouse.engine.records.dead_letters import DEAD_LETTERS, DISCARDED, REPLAYED, RESENT
from lakehouse.engine.records.identity import CLOSED, DELETION, id_of_row
from lakehouse.operations.maintenance.fold_state import out_of_reach
from lakehouse.operations.maintenance.readers import Reader, have_read
from lakehouse.storage import tables
from lakehouse.storage.spark.offset_ranges import OffsetRange, within
from lakehouse.storage.tables import DELETED, Lake, TableSpec, Why
from lakehouse.streams.contract import OWN_TIME
from lakehouse.streams.definition import GoldTable, MergedTable, Source, Stream

_LANDING = timedelta(hours=1)  # the longest time between a record's `ingested_at` and its commit
_SETTLED = (REPLAYED, DISCARDED, RESENT, *CLOSED)


@dataclass(frozen=True)
class Cut:
    """The condition that selects the rows to delete, and their entry in ops.retention, if any.

    `stay` contains the `id` of each row to keep despite the condition. It is None if there are no such rows.
    `frozen` contains the ids whose rows or letters are deleted, keyed by source, in the form that
    `retained.note_ids` expects.
    """

    where: Column
    taken: TakenRows | None = None
    stay: DataFrame | None = None
    frozen: Mapping[Source, DataFrame] = field(default_factory=dict)


CutMaker = Callable[[Lake, datetime], Cut | None]
"""A function that returns a table's cut at a given time (UTC), or None if all rows must be kept."""


def take(lake: Lake, spec: TableSpec, make: CutMaker, now: datetime, *, dry_run: bool) -> int:
    """Delete the rows that a cut selects, and return how many. A dry run only counts them.

    Raises TableError if ids must be recorded while another process has locked the dead letters of their
    source.
    """
    cut = make(lake, now)
    if cut is None:
        return 0
    rows = _going(lake, spec, cut).count()
    if not rows or dry_run:
        return rows
    with ExitStack() as held:
        for source in cut.frozen:
            held.enter_context(holding(lake, source, "retention"))
        decided = make(lake, now) if cut.frozen else cut  # silver and replays may have changed the cut
        return 0 if decided is None else _take(lake, spec, decided, now)


def _take(lake: Lake, spec: TableSpec, cut: Cut, now: datetime) -> int:
    path = lake.path(spec.layer, spec.name)
    if cut.taken is not None:
        # The recorded limit is later if the retention period has been lengthened since then.
        noted = retained.taken_of(lake, spec.layer, spec.name).before
        taken = replace(cut.taken, before=retained.latest((noted, cut.taken.before)))
        retained.note(lake, spec.layer, spec.name, taken, now)
    for source, ids in cut.frozen.items():
        retained.note_ids(lake, source, ids)
    if cut.stay is None:
        return tables.delete(lake.spark, path, cut.where, why=Why.RETAINED)
    gone = _going(lake, spec, cut).select("id", F.lit(True).alias(DELETED)).persist()
    try:
        return tables.replace(gone, path, ("id",), within=cut.where, why=Why.RETAINED)
    finally:
        gone.unpersist()


def _going(lake: Lake, spec: TableSpec, cut: Cut) -> DataFrame:
    rows = lake.read(spec.layer, spec.name).where(cut.where)
    return rows if cut.stay is None else rows.join(cut.stay, "id", "left_anti")


def bronze_cut(source: Source, days: int) -> CutMaker:
    """Select bronze rows in each partition, up to the last offset that landed before the limit."""
    reader = Reader(silver.query_name(source), ("silver", source.table))

    def make(lake: Lake, now: datetime) -> Cut | None:
        before, path = _midnight(now - timedelta(days=days)), lake.path("bronze", source.table)
        if not have_read(lake, [reader], path, before + _LANDING):
            return None
        if lake.is_made_otherwise(silver.spec(source)):  # silver must first be rebuilt with current settings
            return None
        old = tables.read(lake.spark, path).where(F.col("ingested_at") < F.lit(before))
        taken = retained.taken_of(lake, "bronze", source.table)
        gone = _joined(taken.gone, _last_of(old))
        front = retained.latest((taken.front, _front_of(lake, source, gone)))
        return Cut(within(gone), TakenRows(gone=gone, front=front))

    return make


def _front_of(lake: Lake, source: Source, gone: Sequence[OffsetRange]) -> datetime | None:
    """Return the latest event time (UTC) of the valid records at these offsets, ignoring Kafka timestamps.

    Returns None if there are no such records.
    """
    times = silver.sound_times(lake, source, within(gone))
    found = times.agg(F.unix_micros(F.max(OWN_TIME)).alias("micros")).first()
    return None if found is None or found.micros is None else tables.from_micros(found.micros)


def silver_cut(stream: Stream, source: Source, days: int) -> CutMaker:
    """Select silver rows by event time, if their record is no longer in bronze."""

    def make(lake: Lake, now: datetime) -> Cut | None:
        gone = retained.taken_of(lake, "bronze", source.table).gone
        reading = [table for table in stream.gold if source.table in table.reads]
        before = _cut_for(lake, stream, reading, now - timedelta(days=days))
        if before is None or not gone:
            return None
        where = (F.col("event_time") < F.lit(before)) & within(gone)
        if source.sequence_by is None:
            return Cut(where, TakenRows(before))
        ids = _closed_for_good(lake.read("silver", source.table).where(where), source)
        return Cut(where, TakenRows(before), frozen={source: ids})

    return make


def gold_cut(stream: Stream, table: MergedTable, made_by: GoldTable, days: int) -> CutMaker:
    """Select gold rows by the end of their time range."""

    def make(lake: Lake, now: datetime) -> Cut | None:
        before = _cut_for(lake, stream, [made_by], now - timedelta(days=days))
        if before is None or table.time_columns is None:
            return None
        is_final = F.lit(True) if table.final is None else table.final()
        has_ended = F.col(table.time_columns[1]) < F.lit(before)
        if table.window is not None:
            has_ended &= F.expr(table.window.end(table.time_columns[0])) <= F.lit(before)
        return Cut(has_ended & is_final, TakenRows(before))

    return make


def letters_cut(streams: Sequence[Stream], days: int) -> CutMaker:
    """Select settled dead letters by the time when they were first seen."""

    def make(lake: Lake, now: datetime) -> Cut | None:
        before = _midnight(now - timedelta(days=days))
        old = F.col("status").isin(*_SETTLED) & (F.col("first_seen") < F.lit(before))
        of, stay, frozen = list[Column](), list[DataFrame](), dict[Source, DataFrame]()
        for stream, source in ((one, source) for one in streams for source in one.sources):
            gone = retained.taken_of(lake, "bronze", source.table).gone
            if not gone:
                continue
            own = old & (F.col("job") == silver.query_name(source)) & within(gone)
            of.append(own)
            if source.sequence_by is not None:
                counting = lake.read_or_empty(DEAD_LETTERS).where(own & _counts())
                standing = _standing(lake, stream, source)
                stay.append(counting.join(standing, "unique_id", "left_semi").select("id"))
                going = counting.join(standing, "unique_id", "left_anti").select("unique_id").distinct()
                frozen[source] = _deleted(lake, source, going)
        if not of:
            return None
        staying = reduce(DataFrame.union, stay) if stay else None
        return Cut(reduce(Column.__or__, of), stay=staying, frozen=frozen)

    return make


def _counts() -> Column:
    """Return the condition for dead letters that are compared with later records of the same id.

    Replayed, discarded and resent letters are not compared, because a silver row has replaced them or the
    user has dropped them.
    """
    return F.col("status").isin(*CLOSED) & F.col("unique_id").isNotNull()


def _closed_for_good(rows: DataFrame, source: Source) -> DataFrame:
    """Return the ids of silver rows, with limits that refuse every later record with the same id."""
    never = F.lit(None).cast("timestamp")
    own = id_of_row(source).alias("id")
    return rows.select(own, F.lit(None).cast("long").alias("bar"), never.alias("until"), never.alias("since"))


def _deleted(lake: Lake, source: Source, ids: DataFrame) -> DataFrame:
    """Return the given ids with the limits that their dead letters set for later records.

    No silver row with one of these ids can still change. The grain is one row per id. If retention has
    reached an id's row in silver, the id has a second row here, which refuses every later record with this
    id. Letters from an unfinished silver micro-batch are skipped.
    """
    query, clean = silver.query_name(source), lake.path("silver", source.table)
    finished = are_processed(lake.spark, query, clean)
    letters = lake.read_or_empty(DEAD_LETTERS).where(finished & _counts())
    sent = F.coalesce("kafka_timestamp", "ingested_at")
    is_deletion = F.col("status") == DELETION
    known = letters.join(ids, "unique_id", "left_semi").groupBy(F.col("unique_id").alias("id"))
    found = known.agg(
        F.max("sequence").alias("_bar"),
        F.max(F.when(is_deletion & F.col("sequence").isNull(), sent)).alias("until"),
        F.min(F.when(~is_deletion, sent)).alias("since"),
    )
    # A letter without a sequence keeps the limit (`bar`) that was recorded for earlier letters.
    noted = retained.ids_taken(lake, source).select("fingerprint", "bar")
    found = found.withColumn("fingerprint", retained.fingerprint_of(F.col("id")))
    found = found.join(noted, "fingerprint", "left").select(
        "id", F.coalesce("_bar", "bar").alias("bar"), "until", "since"
    )
    rows = _closed_for_good(lake.read("silver", source.table), source)
    return found.union(rows.join(ids, F.col("id") == F.col("unique_id"), "left_semi"))


def _standing(lake: Lake, stream: Stream, source: Source) -> DataFrame:
    """Return the ids of silver rows that can still be corrected, in the column `unique_id`."""
    closed = retained.closed_before(lake, stream, source)
    rows = lake.read("silver", source.table)
    may_change = F.lit(True) if closed is None else F.col("event_time") >= F.lit(closed)
    return rows.where(may_change).select(id_of_row(source).alias("unique_id"))


def ops_cut(column: str, days: int) -> CutMaker:
    """Select the rows of an ops table by a timestamp column."""
    return lambda _lake, now: Cut(F.col(column) < F.lit(_midnight(now - timedelta(days=days))))


def _cut_for(lake: Lake, stream: Stream, made: Iterable[GoldTable], oldest: datetime) -> datetime | None:
    """Return the last midnight (UTC) before `oldest` and any row that can change, or None if unknown."""
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
