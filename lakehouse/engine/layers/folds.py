"""Compute a micro-batch's changes to a gold table and its side tables, as functions on frames.

This module does not access tables: `lakehouse.engine.layers.merging` reads and writes them in a lake, and
`lakehouse.testing.folding` keeps them in frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from lakehouse.engine.layers import recomputing
from lakehouse.storage.spark import internals
from lakehouse.storage.tables import DELETED, from_micros, shifted
from lakehouse.storage.tables.pruning import MOST_SPANS, Between, Near, merged
from lakehouse.streams.definition import (
    EventClock,
    EventTimeProgress,
    GoldTable,
    SideTable,
    WallClock,
)

_HOUR = timedelta(hours=1)

Keyed = tuple[DataFrame, Sequence[str]]
"""A frame that contains keys, and the names of its key columns."""


@dataclass(frozen=True)
class Facts:
    """Facts about the partials (preaggregated rows) of a micro-batch.

    `rows` counts the clean rows. `reached` is the greatest event time, `first` and `last` are the first and
    last time of the partials, and `hours` are the hours in between that contain rows. Times are UTC. A time
    is None if there are no rows or if the table has no such time.
    """

    rows: int
    partials: int = 0
    reached: datetime | None = None
    first: datetime | None = None
    last: datetime | None = None
    hours: tuple[tuple[datetime, datetime], ...] = ()

    @classmethod
    def of(cls, table: GoldTable, partials: DataFrame) -> Facts:
        """Aggregate partials, which should be persisted."""
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
        return cls(rows, count, hours=lie, **times)


@dataclass(frozen=True)
class Given:
    """The input of a fold, apart from the partials and the current rows.

    `front` is the greatest event time merged so far (UTC), or None if nothing has been merged. `left`
    contains the keys of rows that were removed or changed in silver; it is None if there are no such rows.
    Rows that begin up to `stateless_to` (UTC; None: no rows) may lack state because they were recomputed.
    """

    facts: Facts
    progress: EventTimeProgress
    front: datetime | None = None
    left: DataFrame | None = None
    stateless_to: datetime | None = None


@dataclass(frozen=True)
class Folded:
    """New and changed rows, their partials, and the keys that were recomputed (None if there are none)."""

    rows: DataFrame
    partials: DataFrame
    recomputed: DataFrame | None = None


def folded(
    table: GoldTable,
    partials: DataFrame,
    current: DataFrame,
    given: Given,
    made_anew: Callable[[DataFrame], DataFrame],
) -> Folded:
    """Fold partials into the current rows.

    `made_anew` recomputes partials for given keys from all silver rows up to the micro-batch. If a recomputed
    key no longer occurs in silver, its rows are marked as deleted.
    """
    keyed = _to_recompute(table, partials, current, given)
    if keyed is None:
        return Folded(table.fold(partials, current, given.progress), partials)
    keys = list(table.keys)
    partials = partials.join(keyed, keys, "left_anti").unionByName(made_anew(keyed))
    rows = table.fold(partials, current.join(keyed, keys, "left_anti"), given.progress)
    if given.left is not None:
        standing = current.join(keyed, keys, "left_semi")
        emptied = recomputing.emptied(table, standing, partials)
        rows = recomputing.settled(standing, rows, table).unionByName(emptied, allowMissingColumns=True)
    return Folded(rows, partials, keyed)


def to_compare(table: GoldTable, side: SideTable, changed: Folded, *, is_again: bool) -> list[Keyed]:
    """Return the keys whose rows in a side table might have to be deleted.

    If there are no such keys, the side table's new rows are simply upserted. `is_again` means that an earlier
    attempt wrote the side table but not the main table, which may have changed since then.
    """
    found: list[Keyed] = [] if changed.recomputed is None else [(changed.recomputed, table.keys)]
    return [*found, (changed.partials.select(*side.keys).distinct(), side.keys)] if is_again else found


def differences(side: SideTable, rows: DataFrame, every: DataFrame, theirs: Sequence[Keyed]) -> DataFrame:
    """Return the new rows of a side table that differ from its current rows, and the rows to mark as deleted.

    `every` contains all current rows. A current row with a key in `theirs` is deleted if it is not among the
    new rows.
    """
    kept = every.select(*side.schema.names)
    found = [kept.join(keyed, list(keys), "left_semi") for keyed, keys in theirs]
    standing = reduce(DataFrame.unionByName, found).distinct()
    gone = standing.join(rows, list(side.keys), "left_anti").withColumn(DELETED, F.lit(True))
    changed = rows.subtract(standing.select(*rows.columns))
    return changed.withColumn(DELETED, F.lit(False)).unionByName(gone)


def touched(table: GoldTable, facts: Facts, progress: EventTimeProgress, *, exactly: bool) -> Near | None:
    """Return a condition for the rows that the micro-batch could change, or None for all rows.

    The condition is only used to skip files; the fold checks the rows again. If the times of a few late
    records are far from those of the other records, the hours in between are skipped. Unless `exactly` is
    set, times are rounded outward to hours, so that micro-batches in the same hour share generated code.
    """
    extent, reach = table.time_columns, table.merge_radius
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
    near = Near(tuple(overlap(extent, begin, end) for begin, end in spans))
    return near | _due(table, progress)


def overlap(extent: tuple[str, str], begin: datetime, end: datetime) -> tuple[Between, Between]:
    """Select rows whose time range overlaps a span."""
    return Between(extent[0], None, end), Between(extent[1], begin, None)


def waits(clock: WallClock) -> Between:
    """Select the rows that are waiting for the wall clock."""
    value = str(clock.waits.value)
    return Between(clock.waits.column, value, value)


def until_due(clock: WallClock, now: datetime) -> Between:
    """Select the rows that are due at `now`, assuming that they are waiting for the wall clock."""
    return Between(clock.column, None, shifted(now, -clock.after))


def _due(table: GoldTable, progress: EventTimeProgress) -> Near:
    """Return a condition for the rows that could change only because time has passed."""
    clock = table.clock
    if isinstance(clock, EventClock):
        return Near(((Between(clock.due_column, *clock.due_span(progress)),),))
    if isinstance(clock, WallClock):
        return Near(((waits(clock), until_due(clock, progress.now)),))
    return Near(())


def _to_recompute(
    table: GoldTable, partials: DataFrame, current: DataFrame, given: Given
) -> DataFrame | None:
    """Return the keys of rows to recompute from silver, or None if there are none."""
    keys, found = list(table.keys), [] if given.left is None else [given.left]
    if table.needs_recompute is not None and _may_need_recompute(table, given):
        found.append(table.needs_recompute(partials, current).select(*keys))
    return _held(reduce(DataFrame.unionByName, found).distinct()) if found else None


def _may_need_recompute(table: GoldTable, given: Given) -> bool:
    """Return, without reading the table, whether some rows might have to be recomputed."""
    if table.state is None or given.facts.first is None:
        return True
    # Compare with the front itself, not with the front minus the grace period, because maintenance clears
    # state up to the front.
    unsettled_from = table.state.unsettled_from(EventTimeProgress(given.front, given.progress.now))
    if unsettled_from is None:
        return True
    return given.facts.first <= max(unsettled_from, given.stateless_to or unsettled_from)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _held(rows: DataFrame) -> DataFrame | None:
    """Evaluate the rows, and keep the result in the driver's JVM; return None if there are no rows.

    Timestamps are kept as numbers, because one hour each autumn is ambiguous in local time.
    """
    times = [column.name for column in rows.schema if isinstance(column.dataType, TimestampType)]
    found = internals.held(rows.withColumns({name: F.unix_micros(name) for name in times}))
    return None if found is None else found.withColumns({name: F.timestamp_micros(name) for name in times})
