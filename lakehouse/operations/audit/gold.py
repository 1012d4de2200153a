"""Check `gold`: each gold table equals a batch recomputation from the silver rows merged into it."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.operations.audit.report import Check, Compared
from lakehouse.operations.repair import recompute
from lakehouse.operations.repair.recompute import GoldCut
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import GoldTable, MergedTable, Stream


def check_gold(lake: Lake, stream: Stream, table: GoldTable) -> list[Check]:
    """Compare a gold table and its side tables row by row with rows recomputed from silver."""
    cut = recompute.cut_of(lake, table)
    anew = recompute.made_anew(cut)
    checks = []
    for kept in (table, *table.sides):
        found = cut.found[kept.name]
        different = [recompute.differences(found, anew[kept.name], kept)]
        for quantiles in kept.comparison.quantiles:
            merged = table.combine(cut.merged)
            different.append(recompute.rank_errors(found, merged, kept, quantiles))
        subject = Compared(
            stream.name, "gold", f"{' + '.join(f'silver.{name}' for name in table.reads)} → gold.{kept.name}"
        )
        notes = [f"version {cut.versions[kept.name]}", *_set_aside(found, kept), *_left_out(cut, kept)]
        checks.append(subject.compared(found.count(), different, notes))
    return checks


def _set_aside(found: DataFrame, kept: MergedTable) -> list[str]:
    """Return a note with the number of rows whose total overflows its type, if there are any."""
    if not isinstance(kept, GoldTable) or not kept.totals:
        return []
    rows = found.where(reduce(Column.__or__, (F.col(name).isNull() for name in kept.totals))).count()
    return [f"{rows:,} rows with a total that overflows its type; see ops.keys_set_aside"] if rows else []


def _left_out(cut: GoldCut, kept: MergedTable) -> list[str]:
    since = cut.since[kept.name]
    return [] if since is None else [f"rows before {since:%F %T} UTC are not compared, because of retention"]
