"""Check that calls do not depend on which topic is ahead: two orders of the same events give the same table.

python -m benchmarks.orders --events 1000000

One lake reads both topics side by side, in micro-batches of a tenth. The other lake reads all of
analyticsTopic before it starts to read metricsTopic. The exit code is 1 if the tables differ, or if they do
not count every clean event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.bench import bench_services, console
from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples.loads import Load, send
from lakehouse.engine.layers import LayerName
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage.spark.session import start_session
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.registry import choose

app = typer.Typer(add_completion=False)


@app.command()
def orders(
    events: Annotated[int, typer.Option(min=10, help="Records of both topics together.")] = 1_000_000,
) -> None:
    """Send calls once, read them in two orders, and compare the tables."""
    with bench_services() as settings, start_session(settings, "orders", brief=False) as spark:
        summary = send(Load("calls", events, span_s=3600), settings)
        console.print(f"{summary.acknowledged:,} records sent")
        now = datetime.now(UTC) + timedelta(hours=1)
        batches = {"run.max_records": events // 10, "run.max_bytes": 1048576}
        interleaved, one_first = (
            settings.changed({"lake": f"{settings.lake}-{name}", **batches})
            for name in ("interleaved", "one-first")
        )
        (calls,) = choose(["calls"], settings)
        _read(spark, calls, ["bronze", "silver", "gold"], interleaved, now)
        for source in calls.sources:
            _read(spark, replace(calls, sources=(source,), gold=()), ["bronze", "silver"], one_first, now)
            _read(spark, calls, ["gold"], one_first, now)
        same = _compare(spark, interleaved, one_first)
    if not same:
        raise typer.Exit(1)


def _read(
    spark: SparkSession, stream: Stream, layers: Sequence[LayerName], settings: Settings, now: datetime
) -> None:
    done: list[BatchDone] = []
    run(
        Lake(spark, settings.lake),
        [stream],
        layers,
        settings,
        RunOptions(AVAILABLE_NOW, on_batch=done.append, clock=lambda: now),
    )
    rows = Counter[str]()
    for batch in done:
        rows[batch.query] += batch.result.rows
    console.print(
        ", ".join(f"{query} {count:,}" for query, count in rows.items()), f"{len(done)} micro-batches"
    )


def _compare(spark: SparkSession, *lakes: Settings) -> bool:
    """Compare all columns except was_closed, which depends on the exports that have happened."""
    one, other = (
        Lake(spark, settings.lake).read("gold", "call_records").drop("was_closed") for settings in lakes
    )
    (stream,) = choose(["calls"], lakes[0])
    silver = sum(Lake(spark, lakes[0].lake).read("silver", source.table).count() for source in stream.sources)
    counted = one.agg(F.sum(F.col("analytics_events") + F.col("metrics_events"))).collect()[0][0]
    different = one.exceptAll(other).count() + other.exceptAll(one).count()
    console.print(
        f"{one.count():,} and {other.count():,} calls, {different:,} rows differ; "
        f"they count {counted:,} events, silver has {silver:,}"
    )
    for row in (
        one.groupBy("status", F.expr("analytics_events > 0"), F.expr("metrics_events > 0")).count().collect()
    ):
        console.print(f"  {row}")
    return different == 0 and counted == silver


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
