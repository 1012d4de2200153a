"""What retention has taken: rows that were deleted because they were old, not because they were wrong.

Grain of ops.retention: one row per table; key: table_id. `table` is layer.name. `before` (UTC): rows whose
time lies before it have been taken, or are about to be; null for bronze. `gone`: for bronze, the last offset
taken of each partition; else empty. `at`: when this was noted, UTC. A cut is noted before the rows go, so who
compares tables never misses rows without a reason. A rerun replaces the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from lakehouse import tables
from lakehouse.records.offsets import OffsetRange, within
from lakehouse.stream import GoldTable, MergedTable, Source, Stream
from lakehouse.tables import Lake, TableSpec, described

_GONE = StructType().add("topic", "string").add("partition", "integer").add("last", "long")
SCHEMA = described(
    ("table_id", "string", "Delta's id of the table."),
    ("table", "string", "The table, as layer.name."),
    ("before", "timestamp", "Rows whose time (UTC) is before it have been taken; null for bronze."),
    ("gone", ArrayType(_GONE), "Of bronze, the last offset taken of each partition."),
    ("at", "timestamp", "When that was noted, UTC."),
)
RETENTION = TableSpec(
    "ops",
    "retention",
    SCHEMA,
    stats=("table",),
    comment="One row per table of which rows were deleted because they were old.",
)


@dataclass(frozen=True)
class TakenRows:
    """What has been taken of a table: everything `before` a time (UTC), or the offsets `gone`."""

    before: datetime | None = None
    gone: tuple[OffsetRange, ...] = ()

    def notes(self) -> list[str]:
        """Say up to which offsets retention has taken records; nothing if it has taken none."""
        ends = ", ".join(f"{one.topic}-{one.partition} up to {one.last}" for one in self.gone)
        return [f"retention has taken {ends}"] if ends else []

    def filter_kept(self, rows: DataFrame) -> DataFrame:
        """Keep the records that are still in bronze, of rows with the coordinates of records."""
        return rows.where(~within(self.gone)) if self.gone else rows


def taken_of(lake: Lake, layer: str, name: str) -> TakenRows:
    """Return what has been taken of a table; nothing where there is no such table."""
    if not (lake.exists(layer, name) and lake.exists(RETENTION.layer, RETENTION.name)):
        return TakenRows()
    this = F.col("table_id") == tables.table_id(lake.spark, lake.path(layer, name))
    row = lake.read(RETENTION.layer, RETENTION.name).where(this).select(_micros("before"), "gone").first()
    if row is None:
        return TakenRows()
    gone = tuple(OffsetRange(one.topic, one.partition, 0, one.last) for one in row.gone)
    return TakenRows(None if row.before is None else tables.from_micros(row.before), gone)


def note(lake: Lake, layer: str, name: str, taken: TakenRows, now: datetime) -> None:
    """Note what is about to be taken of a table."""
    path = lake.ensure(RETENTION)
    gone = [(one.topic, one.partition, one.last) for one in taken.gone]
    table_id = tables.table_id(lake.spark, lake.path(layer, name))
    rows = lake.spark.createDataFrame([(table_id, f"{layer}.{name}", taken.before, gone, now)], SCHEMA)
    tables.replace(rows, path, ("table_id",), within=F.lit(True))


def filter_kept(lake: Lake, table: MergedTable, rows: DataFrame) -> DataFrame:
    """Keep the rows of a gold table that have not been taken of it."""
    before = taken_of(lake, "gold", table.name).before
    if before is None or table.time_columns is None:
        return rows
    return rows.where(F.col(table.time_columns[1]) >= F.lit(before))


def whole_from(lake: Lake, table: MergedTable, made_by: GoldTable) -> datetime | None:
    """Return the time from which a gold table's rows are still there, with all that they were made of.

    It refers to the row's first time. `made_by` is the table that it is beside, or itself. Null: nothing has
    been taken.
    """
    cuts = [_later(taken_of(lake, "silver", name).before, made_by.merge_radius) for name in made_by.reads]
    return latest([*cuts, taken_of(lake, "gold", table.name).before])


def closed_before(lake: Lake, stream: Stream, source: Source) -> datetime | None:
    """Return the time before which no record of the source can be accepted any more, even if late ones are.

    A row that such a record belongs to has been taken, or records that it would be counted with. Null:
    nothing has been taken.
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
    """Return the latest of some times; null if there is none."""
    return max((moment for moment in moments if moment is not None), default=None)


def _micros(name: str) -> Column:
    return F.unix_micros(name).alias(name)
