"""Clear the fold state (sketches and moments) of gold rows that no later record can change.

Silver refuses records before its watermark. A gold row is therefore final if it ends before the watermark of
the last silver version that gold has merged completely. Clearing can run alongside the layers. Their
micro-batches wait for it (`lakehouse.storage.tables.leases`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import functions as F

from lakehouse.engine.layers import gold, silver
from lakehouse.engine.ops_tables import lateness
from lakehouse.engine.progress import cuts
from lakehouse.engine.records.validation import watermark_of
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, from_micros, leases
from lakehouse.streams.contract import OWN_TIME
from lakehouse.streams.definition import GoldTable, Stream


@dataclass(frozen=True)
class Cleared:
    """How many of a table's rows lost their fold state. All end before `before` (UTC; None if unknown)."""

    table: str
    rows: int
    before: datetime | None


def clear_state(lake: Lake, streams: Sequence[Stream]) -> list[Cleared]:
    """Clear the fold state of rows that no later record can change. A rerun clears nothing.

    Raises TableError if another process holds the lease on a table with such rows.
    """
    return [
        _clear(lake, stream, table) for stream in streams for table in stream.gold if table.state is not None
    ]


def _clear(lake: Lake, stream: Stream, table: GoldTable) -> Cleared:
    name = f"gold.{table.name}"
    before = out_of_reach(lake, stream, table)
    if before is None or table.state is None:
        return Cleared(name, 0, None)
    path = lake.ensure(gold.spec(table))
    ended = table.state.settled() & (F.col(table.state.until) <= F.lit(before))
    is_spent = ended & F.col(table.state.columns[0]).isNotNull()
    if tables.read(lake.spark, path).where(is_spent).isEmpty():
        return Cleared(name, 0, before)
    with leases.held(lake.spark, path, name):
        return Cleared(name, tables.clear(lake.spark, path, table.state.columns, ended), before)


def out_of_reach(lake: Lake, stream: Stream, table: GoldTable) -> datetime | None:
    """Return the earliest event time (UTC) that an unmerged record can have, or None if it is unknown."""
    spark, query = lake.spark, f"gold.{table.name}"
    target = lake.path("gold", table.name)
    watermarks = []
    for name in table.reads:
        source = next(source for source in stream.sources if source.table == name)
        path = lake.ensure(silver.spec(source))
        position = cuts.position_of(spark, query, target, path) if lake.exists("gold", table.name) else None
        if position is None or position.is_beginning or not position.version:
            return None
        # The position is the first version that may have unread rows. If nothing is unread, this version can
        # be old: compaction may have replaced its files, and VACUUM may have removed them.
        newest = tables.version_of(spark, path)
        has_all = not cuts.has_unread(spark, path, position, newest + 1)
        rows = tables.read_version(spark, path, newest if has_all else position.version - 1)
        greatest = rows.agg(F.unix_micros(F.max(OWN_TIME)).alias("micros")).first()
        if greatest is None or greatest.micros is None:
            return None
        known = lateness.read(lake, silver.query_name(source))
        merged = tables.snapshot(spark, path, newest if has_all else position.version - 1)
        number = lateness.number_in(tables.transactions_in(spark, merged), known.table)
        allowed_s = lateness.most([*known.since(number), lateness.Allowance(source.allowed_lateness_s)])
        if allowed_s is None:  # during a backfill
            return None
        watermarks.append(watermark_of(from_micros(greatest.micros), allowed_s))
    return min((moment for moment in watermarks if moment is not None), default=None)
