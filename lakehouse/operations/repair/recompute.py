"""Recompute a gold table and its side tables from the silver rows that they have aggregated.

All rows in a cut of silver pass through the table's own `preaggregate` and `fold` in one batch, starting from
an empty table. The gold table must contain the same rows, within the limits of its Comparison. Rows are not
compared if retention has deleted them or their records (`lakehouse.engine.ops_tables.retained`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, MapType, StructType

from lakehouse.engine.layers.recomputing import wall_clock_of
from lakehouse.engine.ops_tables import retained
from lakehouse.engine.progress import cuts
from lakehouse.engine.progress.finality import Finality, finality_at, grace_of
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Position, shifted
from lakehouse.streams.definition import EventClock, EventTimeProgress, GoldTable, MergedTable, Quantiles

NEVER = datetime(1970, 1, 1, tzinfo=UTC)
RELATIVE = 1e-9
NO_SUCH_ROW = "without a row in silver"
MISSING = "missing"
DOUBLED = "a duplicate key"


@dataclass(frozen=True)
class GoldCut:
    """A gold table, its side tables, and the silver rows that they have aggregated.

    `found` contains the gold rows, `versions` the table versions, and `merged` the silver rows, all keyed by
    table name. `found` excludes rows that begin before the table's `since` (UTC), unless `since` is None.
    `finality` is None unless the table has an EventClock.
    """

    table: GoldTable
    found: Mapping[str, DataFrame]
    versions: Mapping[str, int]
    merged: Mapping[str, DataFrame]
    since: Mapping[str, datetime | None]
    finality: Finality | None


def cut_of(lake: Lake, table: GoldTable) -> GoldCut:
    """Return a table's current cut.

    Side tables are written first, so a side table may be a micro-batch ahead. In that case, its earlier
    version is used.
    """
    spark, query, path = lake.spark, f"gold.{table.name}", lake.path("gold", table.name)
    snapshot = tables.snapshot(spark, path)
    versions = {table.name: tables.version_in(snapshot)}
    read, merged = dict[str, Position | None](), dict[str, DataFrame]()
    for name in table.reads:
        silver_path = lake.path("silver", name)
        read[silver_path] = cuts.position_at(spark, query, snapshot, silver_path)
        merged[name] = cuts.read_up_to(spark, silver_path, read[silver_path])
    for side in table.sides:
        side_path = lake.path("gold", side.name)
        versions[side.name] = cuts.not_ahead(spark, query, side_path, tables.id_of(snapshot), read)
    found, since = {}, {}
    for one in (table, *table.sides):
        since[one.name] = retained.whole_from(lake, one, table)
        standing = tables.read_version(spark, lake.path("gold", one.name), versions[one.name])
        found[one.name] = _filter_since(tables.as_declared(standing, one.schema), one, since[one.name])
    clock = table.clock
    finality = finality_at(spark, query, snapshot, clock) if isinstance(clock, EventClock) else None
    return GoldCut(table, found, versions, merged, since, finality)


def made_anew(cut: GoldCut) -> dict[str, DataFrame]:
    """Return the recomputed rows, keyed by table name, without changes that the wall clock triggers."""
    table = cut.table
    partials = table.preaggregate(table.combine(cut.merged))
    nothing = cut.found[table.name].select(*table.schema.names).where(F.lit(False))
    folded = table.fold(partials, nothing, _front(partials, cut))
    rows = {table.name: folded.select(*table.schema.names)}
    rows |= {side.name: side.rows(folded) for side in table.sides}
    return {
        one.name: _filter_since(rows[one.name], one, cut.since[one.name]) for one in (table, *table.sides)
    }


def _filter_since(rows: DataFrame, table: MergedTable, since: datetime | None) -> DataFrame:
    if since is None or table.time_columns is None:
        return rows
    return rows.where(F.col(table.time_columns[0]) >= F.lit(since))


def differences(found: DataFrame, anew: DataFrame, table: MergedTable) -> DataFrame:
    """Return the keys of rows that differ from the recomputed rows. `what` describes each difference.

    The grain is one row per key. Estimated quantiles are not compared; `rank_errors` checks them.
    """
    keys, clock = list(table.keys), wall_clock_of(table)
    waits = F.lit(True) if clock is None else clock.waits()
    standing = found.withColumn("_waits", waits).groupBy(*keys)
    counted = standing.agg(
        F.count(F.lit(1)).alias("times"), F.first(F.struct(*found.columns, "_waits")).alias("f")
    )
    expected = anew.select(
        *keys,
        F.struct(*anew.columns).alias("e"),
        _struct(table.comparison.slack()).alias("slack"),
        _struct({} if clock is None else clock.set_columns()).alias("becomes"),
    )
    both = counted.join(expected, keys, "full_outer")
    return both.select(*keys, _what(table).alias("what")).where(F.col("what").isNotNull())


def rank_errors(found: DataFrame, merged: DataFrame, table: MergedTable, quantiles: Quantiles) -> DataFrame:
    """Return the keys of rows whose quantiles exceed the allowed rank error. `what` contains the error."""
    keys, value = list(table.keys), F.col(quantiles.value)
    estimated = found.where(F.col(quantiles.count) > quantiles.exact_to).select(*keys, *quantiles.ranks)
    rows = quantiles.keyed(merged).select(*keys, value.alias("_value"))
    counts = {"_rows": F.count("_value")}
    for name in quantiles.ranks:
        counts[f"_below_{name}"] = F.count_if(F.col("_value") < F.col(name))
        counts[f"_up_to_{name}"] = F.count_if(F.col("_value") <= F.col(name))
    ranked = rows.join(estimated, keys)
    ranked = ranked.groupBy(*keys).agg(*(count.alias(name) for name, count in counts.items()))
    errors = (_rank_error(name, rank, quantiles.limit) for name, rank in quantiles.ranks.items())
    wrong = F.array_compact(F.array(*errors))
    return ranked.select(*keys, F.array_join(wrong, ", ").alias("what")).where(F.size(wrong) > 0)


def _front(partials: DataFrame, cut: GoldCut) -> EventTimeProgress:
    clock = cut.table.clock
    if not isinstance(clock, EventClock) or cut.finality is None:
        return EventTimeProgress(None, NEVER)
    found = partials.agg(F.unix_micros(F.max(clock.column)).alias("micros")).first()
    if not found or found.micros is None:
        return EventTimeProgress(None, NEVER)
    front = tables.from_micros(found.micros)
    reached = cut.finality.reached(front)
    return EventTimeProgress(None, NEVER if reached is None else shifted(reached, grace_of(clock)))


def _struct(columns: Mapping[str, Column]) -> Column:
    return F.struct(F.lit(0).alias("_"), *(column.alias(name) for name, column in columns.items()))


def _what(table: MergedTable) -> Column:
    wrong = F.array_compact(F.array(*_wrong_columns(table)))
    return (
        F.when(F.col("f").isNull(), F.lit(MISSING))
        .when(F.col("e").isNull(), F.lit(NO_SUCH_ROW))
        .when(F.col("times") > 1, F.lit(DOUBLED))
        .when(F.size(wrong) > 0, F.array_join(wrong, ", "))
    )


def _wrong_columns(table: MergedTable) -> list[Column]:
    clock, comparison = wall_clock_of(table), table.comparison
    becomes = {} if clock is None else clock.set_columns()
    slack = comparison.slack()
    estimates = {name: one for one in comparison.quantiles for name in one.ranks}
    cleared = table.state.columns if isinstance(table, GoldTable) and table.state else ()  # by maintenance
    wrong = []
    for name, type_ in _compared(table.schema):
        if name in table.keys or {name, name.partition(".")[0]} & set(comparison.ignored):
            continue
        found, expected = F.col(f"f.{name}"), F.col(f"e.{name}")
        if name in becomes:
            expected = F.when(F.col("f._waits"), expected).otherwise(F.col(f"becomes.{name}"))
        more = F.col(f"slack.{name}") if name in slack else F.lit(0.0)
        if name in comparison.present:
            wrong.append(_unlike_presence(name, found, expected))
            continue
        different = _different(found, expected, type_, more)
        if name in estimates:
            different &= F.col(f"f.{estimates[name].count}") <= estimates[name].exact_to
        if name in cleared:
            different &= found.isNotNull()
        says = F.concat(F.lit(f"{name} is "), _text(found), F.lit(", but should be "), _text(expected))
        wrong.append(F.when(different, says))
    return wrong


def _unlike_presence(name: str, found: Column, expected: Column) -> Column:
    """Return a message if exactly one of the two values is null, and null otherwise."""
    lacks, has = F.lit(f"{name} is null, but should have a value"), F.lit(f"{name} should be null")
    return F.when(found.isNull() & expected.isNotNull(), lacks).when(
        found.isNotNull() & expected.isNull(), has
    )


def _compared(schema: StructType) -> Iterator[tuple[str, DataType]]:
    """Yield the columns to compare, with their types. A struct is replaced by its fields."""
    for column in schema:
        if isinstance(column.dataType, StructType):
            yield from ((f"{column.name}.{field.name}", field.dataType) for field in column.dataType)
        else:
            yield column.name, column.dataType


def _different(found: Column, expected: Column, type_: DataType, slack: Column) -> Column:
    if isinstance(type_, MapType):
        found, expected = (F.sort_array(F.map_entries(side)) for side in (found, expected))
    same = found.eqNullSafe(expected)
    if isinstance(type_, DoubleType):
        within = RELATIVE * F.greatest(F.abs(found), F.abs(expected)) + slack
        same |= F.coalesce(F.abs(found - expected) <= within, F.lit(False))
    return ~same


def _text(value: Column) -> Column:
    return F.coalesce(value.cast("string"), F.lit("null"))


def _rank_error(name: str, rank: float, limit: float) -> Column:
    """Return a message with a quantile's rank error, or null if the error is within the limit."""
    below, up_to, rows = F.col(f"_below_{name}"), F.col(f"_up_to_{name}"), F.col("_rows")
    error = F.greatest(below / rows - rank, rank - up_to / rows, F.lit(0.0))
    says = F.format_string(f"the rank error of {name} is %.4f, over the limit of {limit:.4f}", error)
    return F.when(error > limit, says)
