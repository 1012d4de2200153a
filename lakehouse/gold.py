"""Gold: clean rows merged into the tables that users read.

A micro-batch is first reduced to at most one row a key (the table's `partial`), then folded into the rows
that stand (the table's `fold`), and what is new or different is upserted under the query's transaction. A
rerun merges nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from lakehouse import silver, tables
from lakehouse.layer import BatchResult, LayerQuery
from lakehouse.settings import Settings
from lakehouse.stream import Front, GoldTable, Stream
from lakehouse.tables import Greatest, Span, TableSpec, Transaction, from_micros


def spec(table: GoldTable, settings: Settings) -> TableSpec:
    """Return the Delta table of a gold table."""
    times = [column.name for column in table.schema if isinstance(column.dataType, TimestampType)]
    return TableSpec(
        "gold",
        table.name,
        table.schema,
        stats=(*table.keys, *(name for name in times if name not in table.keys)),
        change_feed=True,
        fixed=table.fixed(settings),
    )


def queries(spark: SparkSession, stream: Stream, settings: Settings) -> list[LayerQuery]:
    """Make the stream's gold tables where they are missing and return the queries that fill them."""
    return [_query(spark, stream, table, settings) for table in stream.gold]


def _query(spark: SparkSession, stream: Stream, table: GoldTable, settings: Settings) -> LayerQuery:
    source = next(source for source in stream.sources if source.table == table.reads)
    silver_path = tables.ensure(spark, settings.lake, silver.spec(source, settings))
    path = tables.ensure(spark, settings.lake, spec(table, settings))
    merge = _Merge(table, path, Greatest(path, table.event_time_column), settings)

    def process(batch: DataFrame, transaction: Transaction) -> BatchResult:
        partials = table.partial(batch, settings).persist()
        try:
            return merge(partials, transaction)
        finally:
            partials.unpersist()

    rows = tables.read_stream(spark, silver_path, max_bytes=settings.max_bytes_per_batch)
    return LayerQuery("gold", f"gold.{table.name}", rows, process, fills=path, reads=f"silver.{table.reads}")


@dataclass(frozen=True)
class _Merge:
    """Merges partials into a gold table at `path`; `merged` is the greatest event time in it."""

    table: GoldTable
    path: str
    merged: Greatest
    settings: Settings

    def __call__(self, partials: DataFrame, transaction: Transaction) -> BatchResult:
        table, spark = self.table, partials.sparkSession
        facts = partials.agg(
            F.sum("count"),
            F.unix_micros(F.max(table.event_time_column)),
            F.unix_micros(F.min(table.time_column)),
            F.unix_micros(F.max(table.time_column)),
        ).first()
        if facts is None or facts[0] is None:
            return BatchResult(0)
        rows, reached, first, last = facts
        before = self.merged.value(spark)
        now = from_micros(reached) if before is None else max(before, from_micros(reached))
        front = Front(before, now)

        between = F.col(table.time_column).between(F.lit(from_micros(first)), F.lit(from_micros(last)))
        current = tables.read(spark, self.path).where(between | table.due(front, self.settings))
        folded = table.fold(partials, current, front, self.settings).persist()
        try:
            bounds = F.unix_micros(F.min(table.time_column)), F.unix_micros(F.max(table.time_column))
            changed, least, greatest = folded.agg(F.count(F.lit(1)), *bounds).first() or (0, 0, 0)
            if changed:
                span = Span(table.time_column, from_micros(least), from_micros(greatest))
                tables.upsert(folded, self.path, table.keys, span, transaction)
        finally:
            folded.unpersist()
        self.merged.advance(now)
        return BatchResult(rows, {table.name: changed})
