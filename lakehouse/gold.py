"""Gold: clean rows merged into the tables that users read.

A micro-batch is first reduced to at most one row a key (the table's `partial`), then folded into the rows
that stand (the table's `fold`), and what is new or different is upserted under the query's transaction. A
rerun merges nothing twice.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse import silver, tables
from lakehouse.layer import BatchResult, LayerQuery
from lakehouse.settings import Settings
from lakehouse.stream import Front, GoldTable, Stream
from lakehouse.tables import TableSpec, Transaction, from_micros


def spec(table: GoldTable, settings: Settings) -> TableSpec:
    """Return the Delta table of a gold table."""
    return TableSpec(
        "gold",
        table.name,
        table.schema,
        stats=(*table.keys, "window_end", table.event_time_column),
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

    def process(batch: DataFrame, transaction: Transaction) -> BatchResult:
        partials = table.partial(batch, settings).persist()
        try:
            return _merge(partials, table, path, transaction, settings)
        finally:
            partials.unpersist()

    rows = tables.read_stream(spark, silver_path, max_bytes=settings.max_bytes_per_batch)
    return LayerQuery("gold", f"gold.{table.name}", rows, process, fills=path)


def _merge(
    partials: DataFrame, table: GoldTable, path: str, transaction: Transaction, settings: Settings
) -> BatchResult:
    spark = partials.sparkSession
    facts = partials.agg(
        F.sum("count"),
        F.unix_micros(F.max(table.event_time_column)),
        F.unix_micros(F.min(table.time_column)),
        F.unix_micros(F.max(table.time_column)),
    ).first()
    if facts is None or facts[0] is None:
        return BatchResult(0)
    rows, reached, first, last = facts
    before = tables.greatest(spark, path, table.event_time_column)
    now = from_micros(reached) if before is None else max(before, from_micros(reached))
    front = Front(before, now)

    between = F.col(table.time_column).between(F.lit(from_micros(first)), F.lit(from_micros(last)))
    touched: Column = between | table.due(front, settings)
    current = tables.read(spark, path).where(touched)
    folded = table.fold(partials, current, front, settings).persist()
    try:
        bounds = F.unix_micros(F.min(table.time_column)), F.unix_micros(F.max(table.time_column))
        changed, least, greatest = folded.agg(F.count(F.lit(1)), *bounds).first() or (0, 0, 0)
        if changed:
            span = tables.Span(table.time_column, from_micros(least), from_micros(greatest))
            tables.upsert(folded, path, table.keys, span, transaction)
    finally:
        folded.unpersist()
    return BatchResult(rows, {table.name: changed})
