"""How long suites take on a million windows in gold.metrics_1m, and on the silver rows behind them.

python -m benchmarks.expectations --rows 1000000

Spark generates the rows in a separate lake, without the pipeline. The suites, and the code that runs them,
are the product's.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame
from rich.console import Console

from lakehouse.engine.layers import gold, silver
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.quality.checking import check, make_context, suite_of
from lakehouse.operations.quality.subjects import PinnedTables, subjects
from lakehouse.settings import load_settings
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.registry import BY_DEFAULT, choose

app = typer.Typer(add_completion=False)

METRICS = BY_DEFAULT[0]
SERVICES = 1_000


@app.command()
def expectations(rows: Annotated[int, typer.Option(min=1_000)] = 1_000_000) -> None:
    """Create the tables, run their suites, and print the seconds that each suite takes."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as directory:
        settings = load_settings().changed({"home": Path(directory), "lake": f"{directory}/lake"})
        with open_lake(settings, "expectations", brief=False) as lake:
            _fill(lake, rows)
            every = subjects(choose(["metrics"], settings))
            pinned = PinnedTables(lake, every, settings, utc_now())
            context = make_context(directory)
            for subject in every:
                suite = suite_of(subject)
                if suite is None or subject.name not in pinned.versions:
                    continue
                began = time.monotonic()
                report = check(subject, suite, pinned, context)
                broken = ", ".join(one.expectation for one in report.findings if not one.success)
                console.print(
                    f"{report.table}: {report.rows:,} rows, {len(report.findings)} expectations, "
                    f"{time.monotonic() - began:.1f} s; do not hold: {broken or 'none'}"
                )


def _fill(lake: Lake, rows: int) -> None:
    """Write one event per window, with a service, a minute and a value, and its gold row."""
    events = lake.spark.range(rows).selectExpr(
        f"concat('service ', id % {SERVICES}) AS service_id",
        "'latency_ms' AS metric_name",
        "double(id % 997) AS value",
        "string(NULL) AS environment",
        f"date_trunc('MINUTE', now()) - make_interval(0, 0, 0, 0, 0, int(id / {SERVICES})) AS event_time",
        "'metrics-events' AS topic",
        "int(id % 4) AS partition",
        "id AS offset",
    )
    windows = events.selectExpr(
        "service_id",
        "metric_name",
        "event_time AS window_start",
        "event_time + INTERVAL 1 MINUTE AS window_end",
        "1L AS count",
        *(f"value AS {name}" for name in ("sum", "min", "max", "avg", "p50", "p90", "p95", "p99")),
        "event_time AS last_event_time",
        "true AS is_final",
    )
    _append(events, lake.ensure(silver.spec(METRICS.sources[0])))
    _append(windows, lake.ensure(gold.spec(METRICS.gold[0])))


def _append(rows: DataFrame, path: str) -> None:
    rows.write.format("delta").mode("append").save(path)


if __name__ == "__main__":
    app()
