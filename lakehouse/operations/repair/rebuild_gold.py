"""Rebuild gold: recompute rows from silver and correct those that differ. Other rows remain unchanged.

During a rebuild, the table's micro-batches wait (`lakehouse.storage.tables.leases`). The rebuild recomputes
rows from exactly the silver rows that the table has merged, and upserts the rows that differ. It repeats
these two steps until nothing differs, so it also corrects the rows of a micro-batch that is still running at
the start. If a rebuild is killed, completed commits remain; rerun it to finish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.common.errors import TableError
from lakehouse.engine.layers import gold
from lakehouse.engine.layers.recomputing import settled
from lakehouse.engine.progress import cuts
from lakehouse.operations.repair import MOST_TAKEN_AWAY, recompute
from lakehouse.operations.repair.recompute import DOUBLED, NO_SUCH_ROW
from lakehouse.storage import tables
from lakehouse.storage.tables import DELETED, Lake, leases
from lakehouse.streams.definition import GoldTable, MergedTable, Stream

_ROUNDS = 5


@dataclass(frozen=True)
class WindowSpan:
    """A time range [first, end) in UTC. A bound of None means no limit."""

    first: datetime | None = None
    end: datetime | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the span is unbounded, so the whole table is rebuilt."""
        return self.first is None and self.end is None


@dataclass(frozen=True)
class GoldRebuilt:
    """Row counts from a table's rebuild: rows now in the span, corrected rows and deleted rows."""

    table: str
    rows: int
    changed: int
    deleted: int

    def and_then(self, more: GoldRebuilt) -> GoldRebuilt:
        """Return the combined result of this pass and a later pass."""
        return GoldRebuilt(self.table, more.rows, self.changed + more.changed, self.deleted + more.deleted)


def rebuild_gold(
    lake: Lake, table: GoldTable, span: WindowSpan, *, force: bool = False, dry_run: bool = False
) -> list[GoldRebuilt]:
    """Correct the rows in the table and its side tables. A rerun finds nothing to do.

    Rows remain unchanged if retention has deleted their records from silver. If the table was built with
    different settings, its rows are rewritten with the settings in `table`. Until the rewrite is complete, no
    micro-batch is merged and no row is exported. A dry run takes no lease, writes nothing, and returns the
    expected result. `span` applies to the table's first time column, such as window_start or ts.

    Raises TableError if the table keeps changing, or if a span is given for rows that have no time or were
    built with different settings. Without `force`, also raises TableError if more than MOST_TAKEN_AWAY of a
    table's rows would be deleted. In that case, nothing has been written.
    """
    kept = (table, *table.sides)
    if not span.is_whole and any(one.time_columns is None for one in kept):
        raise TableError(
            f"gold.{table.name} has no time column: rebuild the whole table, without --from and --to"
        )
    is_made_otherwise = any(lake.is_made_otherwise(gold.spec(one)) for one in kept)
    if is_made_otherwise and not span.is_whole:
        raise TableError(
            f"gold.{table.name} was built with different settings ({', '.join(table.pinned_settings)}): "
            "rebuild the whole table, without --from and --to"
        )
    for one in kept:
        if not lake.exists("gold", one.name):
            lake.ensure(gold.spec(one))
    if dry_run:
        return list(_put_right(lake, table, span, force=True, dry_run=True).values())
    by = " with the current settings" if is_made_otherwise else ""
    if is_made_otherwise and not force:
        _put_right(lake, table, span, by, force=False, dry_run=True)  # raises before any write
    done = {one.name: GoldRebuilt(one.name, 0, 0, 0) for one in kept}
    with ExitStack() as held:
        held.enter_context(leases.held(lake.spark, lake.path("gold", table.name), f"gold.{table.name}"))
        for one in kept:
            held.enter_context(lake.made_anew(gold.spec(one)))
        for _ in range(_ROUNDS):
            once = _put_right(lake, table, span, by, force=force)
            done = {name: done[name].and_then(more) for name, more in once.items()}
            if not any(more.changed or more.deleted for more in once.values()):
                return list(done.values())
    raise TableError(f"gold.{table.name} kept changing while it was rebuilt: is another job writing to it?")


def _put_right(
    lake: Lake, table: GoldTable, span: WindowSpan, by: str = "", *, force: bool, dry_run: bool = False
) -> dict[str, GoldRebuilt]:
    """Write the rows that differ, side tables first, as micro-batches do. A dry run only counts them.

    `by` is added to the error message about too many deletions.
    """
    cut = recompute.cut_of(lake, table)
    anew = recompute.made_anew(cut)
    kept = (*table.sides, table)
    looks = [_Look(cut.found[one.name], anew[one.name], one, span) for one in kept]
    try:
        if not force:
            for look in looks:
                look.refuse_to_take_away_many(by)
        return {look.table.name: look.counts() if dry_run else look.write(lake) for look in looks}
    finally:
        for look in looks:
            look.wrong.unpersist()


class _Look:
    """The differences between a table and its recomputed rows in a span. `wrong` contains differing keys."""

    def __init__(self, found: DataFrame, anew: DataFrame, table: MergedTable, span: WindowSpan) -> None:
        within = _within(table, span)
        self.table = table
        self._standing = found
        self._found, self._anew = found.where(within), anew.where(within)
        self.wrong = recompute.differences(self._found, self._anew, table).persist()
        counts = (F.count_if(F.col("what") == what) for what in (NO_SUCH_ROW, DOUBLED))
        found_wrong: Sequence[int] = self.wrong.agg(F.count("*"), *counts).first() or (0, 0, 0)
        every, self._invented, self._doubled = found_wrong
        self._changed = every - self._invented - self._doubled

    def refuse_to_take_away_many(self, by: str) -> None:
        """Raise TableError if too many rows would be deleted, because silver has no records for them.

        The error message includes `by`.
        """
        rows = self._standing.count() if self._invented else 0
        if self._invented > MOST_TAKEN_AWAY * rows:
            raise TableError(
                f"gold.{self.table.name} would lose {self._invented:,} of its {rows:,} rows, because silver "
                f"has no records for them{by}; deleting more than {MOST_TAKEN_AWAY:.0%} requires "
                "--force. Nothing was written. `lakehouse audit` checks whether silver is complete"
            )

    def write(self, lake: Lake) -> GoldRebuilt:
        """Correct the differences. Rows that share a key are deleted; the next pass reinserts one of them."""
        keys = list(self.table.keys)
        if self._changed or self._invented or self._doubled:
            leaves = F.col("what").isin(NO_SUCH_ROW, DOUBLED)
            gone = self.wrong.where(leaves).select(*keys, F.lit(True).alias(DELETED))
            right = settled(self._found, self._anew, self.table)
            right = right.join(self.wrong.where(~leaves), keys, "left_semi")
            rows = right.withColumn(DELETED, F.lit(False)).unionByName(gone, allowMissingColumns=True)
            rows.persist()
            try:
                tables.replace(rows, lake.path("gold", self.table.name), keys, within=F.lit(True))
            finally:
                rows.unpersist()
        return self.counts()

    def counts(self) -> GoldRebuilt:
        """Return the numbers of recomputed, corrected and deleted rows."""
        return GoldRebuilt(self.table.name, self._anew.count(), self._changed, self._invented + self._doubled)


def _within(table: MergedTable, span: WindowSpan) -> Column:
    within = F.lit(True)
    if table.time_columns is not None and span.first is not None:
        within &= F.col(table.time_columns[0]) >= F.lit(span.first)
    if table.time_columns is not None and span.end is not None:
        within &= F.col(table.time_columns[0]) < F.lit(span.end)
    return within


def silver_versions(lake: Lake, stream: Stream) -> dict[str, int]:
    """Return the newest version of each of the stream's silver tables, keyed by table name."""
    names = [source.table for source in stream.sources]
    return {name: tables.version_of(lake.spark, lake.path("silver", name)) for name in names}


def behind(lake: Lake, stream: Stream, versions: Mapping[str, int]) -> list[str]:
    """Return the names of the gold tables that have not yet read silver up to these versions."""
    return [
        f"gold.{table.name}"
        for table in stream.gold
        if lake.exists("gold", table.name)
        and any(_is_behind(lake, table, name, versions[name]) for name in table.reads)
    ]


def _is_behind(lake: Lake, table: GoldTable, name: str, version: int) -> bool:
    query, spark, path = f"gold.{table.name}", lake.spark, lake.path("silver", name)
    position = cuts.position_of(spark, query, lake.path("gold", table.name), path)
    return cuts.has_unread(spark, path, position, version)
