"""Gold: clean rows merged into the tables that users read, and rows that the wall clock closes."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

from lakehouse import tables
from lakehouse.layers import silver
from lakehouse.layers.merging import Merge
from lakehouse.layers.query import BatchResult, LayerQuery, QueryMaker
from lakehouse.settings import Settings
from lakehouse.stream import GoldTable, MergedTable, Stream, WallClock
from lakehouse.tables import Lake, TableSpec, leases

_LOOK_EVERY = timedelta(seconds=30)


def spec(table: MergedTable, settings: Settings) -> TableSpec:
    """Return the Delta table of a gold table."""
    times = [column.name for column in table.schema if isinstance(column.dataType, TimestampType)]
    return TableSpec(
        "gold",
        table.name,
        table.schema,
        stats=tuple(dict.fromkeys((*table.keys, *times, *table.stats))),
        change_feed=True,
        pinned_settings=table.pinned_settings(settings),
        shape={"keys": ",".join(table.keys)}
        | ({} if table.window_s is None else {"window_s": str(table.window_s)}),
        cluster_by=None if table.time_columns is None else table.time_columns[0],
    )


def queries(lake: Lake, stream: Stream, settings: Settings) -> list[QueryMaker]:
    """Return what makes the queries that fill the stream's gold tables."""
    return [
        QueryMaker(stream.name, f"gold.{table.name}", partial(_query, lake, stream, table, settings))
        for table in stream.gold
    ]


def _query(lake: Lake, stream: Stream, table: GoldTable, settings: Settings) -> LayerQuery:
    by_name = {source.table: source for source in stream.sources}
    silver_paths = {name: lake.ensure_source(silver.spec(by_name[name], settings)) for name in table.reads}
    side_paths = {side.name: lake.ensure(spec(side, settings)) for side in table.sides}
    path = lake.ensure(spec(table, settings))
    merge = Merge(lake, table, settings)

    def rows() -> DataFrame:
        return table.combine(
            {
                name: tables.read_stream(lake.spark, silver_path, max_bytes=settings.max_bytes_per_batch)
                for name, silver_path in silver_paths.items()
            }
        )

    return LayerQuery(
        "gold",
        f"gold.{table.name}",
        rows,
        merge.process_batch,
        target=path,
        reads=tuple(f"silver.{name}" for name in table.reads),
        tables={f"gold.{table.name}": path}
        | {f"gold.{name}": side_path for name, side_path in side_paths.items()}
        | {f"silver.{name}": silver_path for name, silver_path in silver_paths.items()},
        co_targets={f"gold.{name}": "true" for name in side_paths},
        ticker=_Ticker(lake.spark, merge, path, table.clock) if isinstance(table.clock, WallClock) else None,
        combine=table.combine,
        is_held=lambda: leases.is_held(lake.spark, path),
        merge_every_s=table.merge_every_s,
    )


class _Ticker:
    """Closes the rows that are due by the wall clock.

    It knows about the rows that the merge wrote. A rebuild or a user's statement can add others, so it looks
    again whenever the table's version has changed.
    """

    def __init__(self, spark: SparkSession, merge: Merge, path: str, clock: WallClock) -> None:
        self._spark = spark
        self._merge = merge
        self._path = path
        self._clock = clock
        self._looked: datetime | None = None
        self._version = -1

    def is_due(self, now: datetime) -> bool:
        """Tell whether a row may be due; true until the table has been looked at."""
        if self._looked is None or (self._merge.next_due is not None and self._merge.next_due <= now):
            return True
        if now - self._looked < _LOOK_EVERY:
            return False
        return tables.version_of(self._spark, self._path) != self._version

    def tick(self, now: datetime) -> BatchResult:
        """Close the rows that are due, unless somebody holds the table's lease: then a later tick does."""
        if leases.is_held(self._spark, self._path):
            return BatchResult(0)
        self._version = tables.version_of(self._spark, self._path)
        result = self._merge.close_due(self._spark, now, self._clock)
        self._looked = now
        return result
