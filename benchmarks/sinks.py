"""Rows per second that each store takes from an export: new rows, the same rows changed, and all rows again.

    python -m benchmarks.sinks --rows 100000

gold.metrics_1m gets the rows in one commit, and the export sends them to Kafka, Redis and PostgreSQL. A
store's time is the time that the export waits for it. It does not include the time that Spark takes to
prepare the rows. The servers are on this machine, and PostgreSQL runs with fsync.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import SecretStr
from pyspark.sql import functions as F

from benchmarks.bench import bench_services, console
from lakehouse.engine.layers import gold
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.registry import BY_DEFAULT
from tests.support import postgres_servers

app = typer.Typer(add_completion=False)
_METRICS = BY_DEFAULT[0]
_TABLE = _METRICS.gold[0]
_START_US = int(datetime(2026, 10, 1, tzinfo=UTC).timestamp()) * 1_000_000
_SERVICES = 1_000


@app.command()
def sinks(rows: Annotated[int, typer.Option(min=1, help="Rows in gold.")] = 100_000) -> None:
    """Measure how fast the export writes to each store."""
    with (
        bench_services() as services,
        postgres_servers.server(fsync=True) as server,
        open_lake(services, "bench sinks", brief=False) as lake,
    ):
        settings = services.changed({"postgres.url": SecretStr(server.url())})
        path = lake.ensure(gold.spec(_TABLE))
        _put(lake, path, 1_000, 1)
        _export(lake, settings)  # to warm up
        for what, count in (("new", 2), ("changed", 3)):
            _put(lake, path, rows, count)
            _print(what, rows, _export(lake, settings))
        with server.connect() as connection:
            connection.execute("TRUNCATE gold.metrics_1m")
        began = time.monotonic()
        filled = sum(one.result.written["postgres"] for one in _export(lake, settings))
        seconds = time.monotonic() - began
        console.print(
            f"postgres filled: {seconds:.2f} s including Spark's time, {filled / seconds:,.0f} rows/s"
        )


def _put(lake: Lake, path: str, rows: int, count: int) -> None:
    number = F.col("id")
    minute = F.floor(number / _SERVICES) * 60_000_000
    values = {
        "service_id": F.concat(F.lit("service "), number % _SERVICES),
        "metric_name": F.lit("latency"),
        "window_start": F.timestamp_micros(F.lit(_START_US) + minute),
        "window_end": F.timestamp_micros(F.lit(_START_US + 60_000_000) + minute),
        "count": F.lit(count),
        "last_event_time": F.timestamp_micros(F.lit(_START_US + 59_000_000) + minute),
        "is_final": F.lit(False),
    }
    columns = [
        values.get(field.name, F.lit(None) if field.name == "sketch" else number * 1.25)
        .cast(field.dataType)
        .alias(field.name)
        for field in _TABLE.schema
    ]
    tables.replace(lake.spark.range(rows).select(*columns), path, _TABLE.keys, within=F.lit(True))


def _export(lake: Lake, settings: Settings) -> list[BatchDone]:
    done = list[BatchDone]()
    stream = replace(_METRICS, gold=(_TABLE,))
    run(lake, [stream], ["export"], settings, RunOptions(AVAILABLE_NOW, on_batch=done.append))
    return done


def _print(what: str, rows: int, done: list[BatchDone]) -> None:
    total = sum(one.duration_s for one in done)
    written = [dict(one.result.written) for one in done]
    console.print(
        f"{rows:,} rows {what}: {len(done)} micro-batches, {total:.1f} s with all stores: {written}"
    )
    for store in ("kafka", "redis", "postgres"):
        seconds = sum(one.result.seconds[store] for one in done)
        console.print(f"  {store}: {seconds:.2f} s, {rows / seconds:,.0f} rows/s")


if __name__ == "__main__":
    app()
