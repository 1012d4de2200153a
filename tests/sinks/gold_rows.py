"""Rows written directly to gold.metrics_1m, and the database that is its only sink.

Each call is one Delta commit, so every version is known: version 0 creates the table, and version 1 is the
first write.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.engine.layers import gold
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit import Check
from lakehouse.operations.audit.stores import check_store
from lakehouse.settings import Settings
from lakehouse.sinks.postgres import layout as postgres_layout
from lakehouse.sinks.postgres import sink as to_postgres
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import DELETED, Lake
from lakehouse.streams.definition import GoldTable
from tests.support.streams import METRICS, METRICS_1M

START = datetime(2026, 3, 29, 0, 59, tzinfo=UTC)
Row = tuple[Any, ...]


def only_there(table: GoldTable) -> GoldTable:
    """Return the table, exported only to PostgreSQL."""
    return replace(table, export=replace(table.export, topic=None, sinks=(postgres_layout.NAME,)))


TABLE = only_there(METRICS_1M)


def state(service: str, minute: int, count: int = 1, p99: float | None = 2.5) -> dict[str, Any]:
    start = START + timedelta(minutes=minute)
    return {
        "service_id": service,
        "metric_name": "latency",
        "window_start": start,
        "window_end": start + timedelta(minutes=1),
        "count": count,
        "sum": 2.5 * count,
        **dict.fromkeys(("min", "max", "avg", "p50", "p90", "p95"), 2.5),
        "p99": p99,
        "variance": None,
        "stddev": None,
        "last_event_time": start + timedelta(microseconds=59_999_999),
        "is_final": False,
        "m2": 0.0,
        "sketch": bytearray(b"sketch"),
    }


class Gold:
    """One lake's gold.metrics_1m, and the database that it is exported to."""

    def __init__(self, spark: SparkSession, settings: Settings, table: GoldTable = TABLE) -> None:
        self.spark = spark
        self.stream = replace(METRICS, gold=(table,))
        self.settings = settings
        self.lake = Lake(spark, settings.lake)
        self.path = self.lake.ensure(gold.spec(TABLE))

    def put(self, *rows: dict[str, Any]) -> None:
        frame = local_frame(self.spark, rows, TABLE.schema).coalesce(1)
        tables.replace(frame, self.path, TABLE.keys, within=F.lit(True))

    def take_away(self, row: dict[str, Any]) -> None:
        frame = local_frame(self.spark, [row], TABLE.schema).withColumn(DELETED, F.lit(True))
        tables.replace(frame, self.path, TABLE.keys, within=F.lit(True))

    def run(self) -> list[BatchDone]:
        """Export until caught up."""
        done = list[BatchDone]()
        options = RunOptions(AVAILABLE_NOW, on_batch=done.append)
        run(self.lake, [self.stream], ["export"], self.settings, options)
        return done

    def written(self) -> list[int]:
        return [one.result.written[postgres_layout.NAME] for one in self.run()]

    def forget(self) -> None:
        """Delete the record of how far the table has been exported."""
        shutil.rmtree(Path(self.path, "_lakehouse_export"))

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.settings.postgres.url.get_secret_value(), autocommit=True) as connection:
            yield connection

    def ask(self, query: str) -> list[Row]:
        with self.connected() as connection:
            done = connection.execute(query)
            return done.fetchall() if done.description else []

    def there(self) -> set[Row]:
        """Return the database's rows: service, minute, count and version."""
        minute = f"extract(epoch FROM window_start - '{START.isoformat()}')::integer / 60"
        return set(self.ask(f"SELECT service_id, {minute}, count, _version FROM gold.metrics_1m"))

    def audited(self) -> Check:
        (check,) = check_store(
            self.lake, self.stream, TABLE, to_postgres.KIND, settings=self.settings, now=utc_now()
        )
        return check
