"""Recompute gold rows that a micro-batch cannot update from its partials.

These are rows whose records arrived out of order (`GoldTable.needs_recompute`), and rows based on a silver
row that another record has corrected or deleted. They are computed again from silver.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.engine.layers.step import Batch
from lakehouse.engine.progress import cuts
from lakehouse.storage.spark.execution import Amount, execute_for
from lakehouse.storage.tables import DELETED, Lake, from_micros
from lakehouse.storage.tables.commits import CHANGE_TYPE
from lakehouse.storage.tables.pruning import in_spans, merged
from lakehouse.streams.definition import GoldTable, MergedTable, WallClock


@dataclass(frozen=True)
class Moved:
    """A micro-batch's partials, the partials from which its facts are computed, and the keys of removed rows.

    All three frames are persisted. `left` contains the keys, and is None if no row was removed from silver.
    """

    partials: DataFrame
    touched: DataFrame
    left: DataFrame | None = None

    @classmethod
    def of(cls, table: GoldTable, rows: DataFrame) -> Moved:
        """Compute the frames from clean rows, or from changes to clean rows."""
        if CHANGE_TYPE not in rows.columns:
            partials = table.preaggregate(rows).persist()
            return cls(partials, partials)
        is_gone = F.col(CHANGE_TYPE) == "delete"  # otherwise "insert": `TableStep` sets only these two types
        bare = rows.drop(CHANGE_TYPE)
        partials = table.preaggregate(bare.where(~is_gone)).persist()
        left = table.preaggregate(bare.where(is_gone)).select(*table.keys).distinct().persist()
        return cls(partials, table.preaggregate(bare).persist(), left)

    def close(self) -> None:
        """Unpersist the frames."""
        for frame in (self.partials, self.touched, self.left):
            if frame is not None:
                frame.unpersist()


def made_anew(
    lake: Lake, table: GoldTable, batch: Batch, to_recompute: DataFrame, *, in_windows: bool
) -> DataFrame:
    """Recompute partials for these keys from all silver rows up to the micro-batch's end.

    Later rows are left for later micro-batches. If `in_windows` is set and the table has windows, only rows
    in the windows of these keys are read. The session remains configured for large inputs.
    """
    spark, ends = to_recompute.sparkSession, batch.ends
    execute_for(spark, Amount.MANY)
    paths = {name: lake.path("silver", name) for name in table.reads}
    history = table.combine(
        {name: cuts.read_up_to(spark, path, ends.get(f"silver.{name}")) for name, path in paths.items()}
    )
    if in_windows:
        history = history.where(_of_windows(table, to_recompute))
    return of_keys(table, history, F.broadcast(to_recompute))


def of_keys(table: GoldTable, history: DataFrame, to_recompute: DataFrame) -> DataFrame:
    """Compute partials for these keys from silver rows."""
    # Spark pushes the join below the partials' aggregate if the join's keys are columns in silver.
    anew = table.preaggregate(history).join(to_recompute, list(table.keys), "left_semi")
    return anew.withColumn("recomputed", F.lit(True)) if "recomputed" in anew.columns else anew


def emptied(table: GoldTable, standing: DataFrame, partials: DataFrame) -> DataFrame:
    """Return the current rows whose keys no longer occur in silver after recomputing, marked as deleted."""
    keys = list(table.keys)
    gone = standing.join(partials.select(*keys).distinct(), keys, "left_anti")
    return gone.select(*table.schema.names).withColumn(DELETED, F.lit(True))


def settled(found: DataFrame, anew: DataFrame, table: MergedTable) -> DataFrame:
    """Prepare recomputed rows for writing. Rows that the wall clock has already closed remain closed."""
    clock = wall_clock_of(table)
    if clock is None:
        return anew
    keys = list(table.keys)
    closed = found.where(~clock.waits()).select(*keys, F.lit(True).alias("_closed")).distinct()
    becomes = {
        name: F.when(F.col("_closed"), column).otherwise(F.col(name))
        for name, column in clock.set_columns().items()
    }
    return anew.join(closed, keys, "left").withColumns(becomes).drop("_closed")


def wall_clock_of(table: MergedTable) -> WallClock | None:
    """Return the wall clock that closes the table's rows, or None if there is none."""
    return table.wall_clock if isinstance(table, GoldTable) else None


def _of_windows(table: GoldTable, keyed: DataFrame) -> Column:
    """Select the silver rows in the windows of the keys, or all rows if the table has no windows.

    Spark computes the windows' ends, as it does their starts: Python's time zone database can differ.
    """
    if table.window is None or "window_start" not in table.keys:
        return F.lit(True)
    end = F.expr(table.window.end("window_start"))
    windows = keyed.agg(F.collect_set(F.struct(F.unix_micros("window_start"), F.unix_micros(end)))).first()
    spans = merged((start, end) for start, end in (windows[0] if windows else ()))
    times = [(from_micros(start), from_micros(end)) for start, end in spans]
    return in_spans("event_time", times).condition()
