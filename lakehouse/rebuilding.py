"""Gold rebuilt: rows that are not what silver makes them are put right, and no other row is touched.

A rebuild holds the micro-batches of the table back (`lakehouse.leases`), makes the rows anew from the very
rows of silver that the table has merged, and upserts those that differ. That is looked at again until nothing
differs, so a micro-batch that was still under way does no harm. A rebuild that is killed has upserted or has
not; the next one finishes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse import cuts, leases, recompute, tables
from lakehouse.errors import TableError
from lakehouse.recompute import DOUBLED, NO_SUCH_ROW
from lakehouse.settings import Settings
from lakehouse.stream import DELETED, GoldTable, KeptTable, Stream

_ROUNDS = 5


@dataclass(frozen=True)
class Span:
    """Times from `first` on and before `end`, UTC; null: without a bound."""

    first: datetime | None = None
    end: datetime | None = None

    @property
    def is_whole(self) -> bool:
        """Tell whether it has no bound."""
        return self.first is None and self.end is None


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild did to a table: rows of the span there are now, rows put right, and rows taken away."""

    table: str
    rows: int
    changed: int
    deleted: int

    def and_then(self, more: Rebuilt) -> Rebuilt:
        """Return what this and a later look have done together."""
        return Rebuilt(self.table, more.rows, self.changed + more.changed, self.deleted + more.deleted)


def rebuild_gold(spark: SparkSession, table: GoldTable, settings: Settings, span: Span) -> list[Rebuilt]:
    """Put the rows of the table, and of those beside it, right; a rerun finds nothing to do.

    `span` is of the row's first time (window_start, ts). Raises TableError where the table's rows have none
    and a span is asked for, and where the table does not come to rest.
    """
    kept = (table, *table.sides)
    if not span.is_whole and any(one.extent is None for one in kept):
        raise TableError(
            f"rows of gold.{table.name} have no time of their own: rebuild it whole, without --from and --to"
        )
    path = tables.path_of(settings.lake, "gold", table.name)
    done = {one.name: Rebuilt(one.name, 0, 0, 0) for one in kept}
    with leases.held(spark, path, f"gold.{table.name}"):
        for _ in range(_ROUNDS):
            once = _put_right(spark, table, settings, span)
            done = {name: done[name].and_then(more) for name, more in once.items()}
            if not any(more.changed or more.deleted for more in once.values()):
                return list(done.values())
    raise TableError(f"gold.{table.name} went on changing while it was rebuilt: does a second job write it?")


def _put_right(spark: SparkSession, table: GoldTable, settings: Settings, span: Span) -> dict[str, Rebuilt]:
    """Write what differs, to the tables beside it first, as micro-batches do."""
    cut = recompute.cut_of(spark, table, settings)
    anew = recompute.made_anew(cut, settings)
    return {
        kept.name: _put_table_right(cut.found[kept.name], anew[kept.name], kept, settings, span)
        for kept in (*table.sides, table)
    }


def _put_table_right(
    found: DataFrame, anew: DataFrame, table: KeptTable, settings: Settings, span: Span
) -> Rebuilt:
    within, keys = _within(table, span), list(table.keys)
    found, anew = found.where(within), anew.where(within)
    wrong = recompute.differences(found, anew, table, settings).persist()
    try:
        leaves = F.col("what").isin(NO_SUCH_ROW, DOUBLED)
        changed, deleted = wrong.agg(F.count_if(~leaves), F.count_if(leaves)).first() or (0, 0)
        if changed or deleted:
            # A key that is there twice leaves first; the next look finds it missing.
            gone = wrong.where(leaves).select(*keys, F.lit(True).alias(DELETED))  # noqa: FBT003
            right = recompute.settled(found, anew, table, settings)
            right = right.join(wrong.where(~leaves), keys, "left_semi")
            path = tables.path_of(settings.lake, "gold", table.name)
            rows = right.withColumn(DELETED, F.lit(False)).unionByName(gone, allowMissingColumns=True)  # noqa: FBT003
            rows.persist()
            try:
                tables.replace(rows, path, keys, within=F.lit(True))  # noqa: FBT003
            finally:
                rows.unpersist()
        return Rebuilt(table.name, anew.count(), changed, deleted)
    finally:
        wrong.unpersist()


def _within(table: KeptTable, span: Span) -> Column:
    within = F.lit(True)  # noqa: FBT003
    if table.extent is not None and span.first is not None:
        within &= F.col(table.extent[0]) >= F.lit(span.first)
    if table.extent is not None and span.end is not None:
        within &= F.col(table.extent[0]) < F.lit(span.end)
    return within


def silver_versions(spark: SparkSession, stream: Stream, settings: Settings) -> dict[str, int]:
    """Return the newest version of each silver table of the stream, by name."""
    paths = {one.table: tables.path_of(settings.lake, "silver", one.table) for one in stream.sources}
    return {name: cuts.written_now(spark, path, None).version for name, path in paths.items()}


def behind(spark: SparkSession, stream: Stream, settings: Settings, versions: Mapping[str, int]) -> list[str]:
    """Return the gold tables that have not read every append to silver before the versions."""
    return [
        f"gold.{table.name}"
        for table in stream.gold
        if tables.exists(spark, tables.path_of(settings.lake, "gold", table.name))
        and any(_is_behind(spark, table, name, settings, versions[name]) for name in table.reads)
    ]


def _is_behind(spark: SparkSession, table: GoldTable, name: str, settings: Settings, version: int) -> bool:
    query = f"gold.{table.name}"
    path = tables.path_of(settings.lake, "silver", name)
    positions = cuts.positions(spark, settings.lake, query, cuts.finished(spark, settings.lake, query))
    return cuts.has_unread(spark, path, positions.get(tables.table_id(spark, path)), version)
