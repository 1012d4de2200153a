"""Rows that retention has deleted: ops.retention and ops.retained_ids.

Grain of ops.retention: one row per table; key: table_id. Each row is written before the deletion that it
describes, so that comparisons of tables can explain every missing row. A rerun replaces the row. For tables
other than bronze, `gone` is empty and `front` is null.

Grain of ops.retained_ids: one row per id whose silver row retention deletes, or whose dead letters it deletes
after a deletion record has removed the silver row; key: table_id, fingerprint. Rows are written before the
deletion, and only for sources with `sequence_by`. If `bar` is null, no later record is accepted. If the
setting `sequence_by` differs from the column's value, `bar`, `until` and `since` count as null. If an id is
written again, the greatest bar is kept, and a null bar remains null. A rerun changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from lakehouse.storage import tables
from lakehouse.storage.spark.offset_ranges import OffsetRange, within
from lakehouse.storage.tables import Lake, TableSpec, described
from lakehouse.streams.definition import GoldTable, MergedTable, Source, Stream

_GONE = StructType().add("topic", "string").add("partition", "integer").add("last", "long")
SCHEMA = described(
    ("table_id", "string", "Delta's id of the table."),
    ("table", "string", "The table, as layer.name."),
    ("before", "timestamp", "The time (UTC) before which rows are deleted; null for bronze."),
    ("gone", ArrayType(_GONE), "For bronze, the last deleted offset in each partition."),
    ("front", "timestamp", "For bronze, the greatest own event time (UTC) of deleted valid records."),
    ("at", "timestamp", "When the row was written, UTC."),
)
RETENTION = TableSpec(
    "ops",
    "retention",
    SCHEMA,
    stats=("table",),
    comment="One row per table from which retention has deleted rows.",
)

_STATE = ("bar", "until", "since")
RETAINED_IDS = TableSpec(
    "ops",
    "retained_ids",
    described(
        ("table_id", "string", "Delta's id of the silver table."),
        ("fingerprint", "binary", "The first 16 bytes of the SHA-256 of the id as a string."),
        ("bar", "long", "The greatest sequence that deletions cover; null if the silver row was deleted."),
        ("until", "timestamp", "When the last unsequenced deletion was sent, UTC; null if there was none."),
        ("since", "timestamp", "When the id's first version was sent, UTC; null if bar is null."),
        ("sequence_by", "string", "The setting sequence_by under which bar, until and since are valid."),
    ),
    stats=("table_id",),
    comment="One row per id whose silver row or dead letters retention has deleted.",
)


@dataclass(frozen=True)
class TakenRows:
    """The rows that retention has deleted: all rows `before` a time (UTC), or the offsets in `gone`.

    `front` is the greatest own event time (UTC) of valid records at these offsets, or None if there are none.
    """

    before: datetime | None = None
    gone: tuple[OffsetRange, ...] = ()
    front: datetime | None = None

    def notes(self) -> list[str]:
        """Return a note that lists each partition's last deleted offset, or no note if none was deleted."""
        ends = ", ".join(f"{one.topic}-{one.partition} up to {one.last}" for one in self.gone)
        return [f"retention has deleted {ends}"] if ends else []

    def filter_kept(self, rows: DataFrame) -> DataFrame:
        """Keep the rows whose records, judging by their coordinates, have not been deleted from bronze."""
        return rows.where(~within(self.gone)) if self.gone else rows


def taken_of(lake: Lake, layer: str, name: str) -> TakenRows:
    """Return the rows that retention has deleted from a table, or no rows if the table does not exist."""
    if not (lake.exists(layer, name) and lake.exists(RETENTION.layer, RETENTION.name)):
        return TakenRows()
    this = F.col("table_id") == tables.table_id(lake.spark, lake.path(layer, name))
    rows = lake.read(RETENTION.layer, RETENTION.name).where(this)
    row = rows.select(_micros("before"), "gone", _micros("front")).first()
    if row is None:
        return TakenRows()
    before, front = (None if at is None else tables.from_micros(at) for at in (row.before, row.front))
    gone = tuple(OffsetRange(one.topic, one.partition, 0, one.last) for one in row.gone)
    return TakenRows(before, gone, front)


def note(lake: Lake, layer: str, name: str, taken: TakenRows, now: datetime) -> None:
    """Record the rows that retention is about to delete from a table, replacing any earlier entry."""
    path = lake.ensure(RETENTION)
    gone = [(one.topic, one.partition, one.last) for one in taken.gone]
    table_id = tables.table_id(lake.spark, lake.path(layer, name))
    noted = (table_id, f"{layer}.{name}", taken.before, gone, taken.front, now)
    rows = lake.spark.createDataFrame([noted], SCHEMA)
    tables.replace(rows, path, ("table_id",), within=F.lit(True))


def fingerprint_of(id_: Column) -> Column:
    """Return the fingerprint for an id of any type, or null if the id is null."""
    return F.substring(F.unhex(F.sha2(id_.cast("string"), 256)), 1, 16)


def note_ids(lake: Lake, source: Source, ids: DataFrame) -> None:
    """Record the ids of silver rows or dead letters that retention is about to delete.

    `ids` contains `id`, and `bar`, `until` and `since` as in ops.retained_ids. An id can occur several times.
    """
    path, table_id = lake.ensure(RETAINED_IDS), tables.table_id(lake.spark, lake.path("silver", source.table))
    new = ids.select(fingerprint_of(F.col("id")).alias("fingerprint"), *_STATE)
    known = new.where(F.col("fingerprint").isNotNull())
    before = ids_taken(lake, source).join(known, "fingerprint", "left_semi")
    is_whole = F.bool_or(F.col("bar").isNull())
    state = (F.max("bar"), F.max("until"), F.min("since"))
    joined = (F.when(~is_whole, one).alias(name) for one, name in zip(state, _STATE, strict=True))
    found = known.union(before).groupBy("fingerprint").agg(*joined)
    found = found.withColumns({"table_id": F.lit(table_id), "sequence_by": F.lit(source.sequence_by)})
    found = found.select(*RETAINED_IDS.schema.names).persist()
    try:
        tables.replace(found, path, ("table_id", "fingerprint"), within=F.col("table_id") == table_id)
    finally:
        found.unpersist()


def ids_taken(lake: Lake, source: Source) -> DataFrame:
    """Return the ids of which retention has deleted rows or dead letters: fingerprint, bar, until, since.

    `bar`, `until` and `since` are null if they were recorded under a different `sequence_by`. Grain: one row
    per id; key: fingerprint.
    """
    noted = RETAINED_IDS.layer, RETAINED_IDS.name
    if not (lake.exists("silver", source.table) and lake.exists(*noted)):
        return lake.spark.createDataFrame([], RETAINED_IDS.schema).select("fingerprint", *_STATE)
    this = F.col("table_id") == tables.table_id(lake.spark, lake.path("silver", source.table))
    holds = F.col("sequence_by") == F.lit(source.sequence_by)
    state = (F.when(holds, F.col(name)).alias(name) for name in _STATE)
    return lake.read(*noted).where(this).select("fingerprint", *state)


def filter_kept(lake: Lake, table: MergedTable, rows: DataFrame) -> DataFrame:
    """Keep the rows that retention has not deleted from a gold table."""
    before = taken_of(lake, "gold", table.name).before
    if before is None or table.time_columns is None:
        return rows
    return rows.where(F.col(table.time_columns[1]) >= F.lit(before))


def whole_from(lake: Lake, table: MergedTable, made_by: GoldTable) -> datetime | None:
    """Return the time (UTC) from which a gold table's rows and their silver rows are complete.

    Compare the time with the first time column of a row. The time is None if retention has deleted nothing.
    For a side table, `made_by` is its main table; for any other table, it is the table itself.
    """
    cuts = [_later(taken_of(lake, "silver", name).before, made_by.merge_radius) for name in made_by.reads]
    return latest([*cuts, taken_of(lake, "gold", table.name).before])


def closed_before(lake: Lake, stream: Stream, source: Source) -> datetime | None:
    """Return the time (UTC) before which no record is accepted, whatever the allowed lateness.

    Retention has deleted the row to which an earlier record belongs, or records that must be aggregated with
    it. The time is None if retention has deleted nothing.
    """
    cuts = list[datetime | None]()
    for table in (one for one in stream.gold if source.table in one.reads):
        cuts += [taken_of(lake, "silver", name).before for name in table.reads]
        kept = (taken_of(lake, "gold", one.name).before for one in (table, *table.sides))
        cuts += [_later(before, table.merge_radius) for before in kept]
    return latest(cuts)


def _later(moment: datetime | None, by: timedelta) -> datetime | None:
    return None if moment is None else moment + by


def latest(moments: Iterable[datetime | None]) -> datetime | None:
    """Return the latest time, ignoring None, or None if there is no time."""
    return max((moment for moment in moments if moment is not None), default=None)


def _micros(name: str) -> Column:
    return F.unix_micros(name).alias(name)
