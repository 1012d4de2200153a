"""`make exact`: send 600,000 events at 10,000/s, catch up, and compare every window with an oracle.

A separate client reads the events back from the topic. tests/oracles, plain Python that shares no code with
the pipeline, validates them. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from benchmarks.bench import METRICS, bench_services, console
from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples.loads import Load, send
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage.tables import open_lake
from tests.oracles.judging import Judged
from tests.oracles.metrics import PERCENTILES, Metric, metrics_1m, rank_error
from tests.support.pipeline import BRONZE, TABLES, Coordinates, Row, coordinates_of, read_topic, rows_of
from tests.support.verdicts import accepted, judge_batches, same_dead_letters, same_silver, window_differences

MALFORMED, LATE, DUPLICATES = 0.01, 0.02, 0.01

app = typer.Typer(add_completion=False)


@app.command()
def exact(
    rate: Annotated[float, typer.Option(min=1, help="Events per second.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long to send events.")] = 60,
) -> None:
    """Send events, catch up, and compare bronze, silver, dead letters and gold with the events sent."""
    with bench_services() as settings, open_lake(settings, "exact", brief=False) as lake:
        # The first event gives silver a watermark. Without a watermark, nothing would be late.
        _send(settings, 1, None, seed=1, shares=(0.0, 0.0, 0.0))
        run(lake, METRICS, LAYERS, settings, RunOptions(AVAILABLE_NOW))
        events = int(rate * seconds)
        _send(settings, events, rate, seed=2, shares=(MALFORMED, LATE, DUPLICATES))
        began, done = time.monotonic(), list[BatchDone]()
        run(lake, METRICS, LAYERS, settings, RunOptions(AVAILABLE_NOW, on_batch=done.append))
        console.print(f"caught up in {time.monotonic() - began:.1f} s and {len(done)} micro-batches")
        differences = list(_differences(settings, events + 1))
        for difference in differences[:20]:
            console.print(f"DIFFERENT: {difference}", style="red")
        if differences:
            raise typer.Exit(1)


def _send(
    settings: Settings, events: int, rate: float | None, *, seed: int, shares: tuple[float, float, float]
) -> None:
    malformed, late, duplicates = shares
    load = Load(
        "metrics", events, rate=rate, seed=seed, malformed=malformed, late=late, duplicates=duplicates
    )
    summary = send(load, settings)
    error = abs(summary.actual_rate / rate - 1) if rate else 0.0
    console.print(
        f"sent {summary.sent:,}, acknowledged {summary.acknowledged:,}, failed {summary.failed:,} in "
        f"{summary.duration_s:.2f} s, rate error {error:.4%}"
    )


def _differences(settings: Settings, sent: int) -> Iterator[str]:
    verdicts = _judge_topic(settings)
    bronze, silver, dead, gold = (rows_of(settings, table) for table in TABLES)
    counted = sum(row["count"] for row in gold)
    console.print(
        f"{sent:,} sent; bronze {len(bronze):,} = silver {len(silver):,} + dead letters {len(dead):,}; "
        f"gold {len(gold):,} windows that count {counted:,}"
    )
    if not sent == len(bronze) == len(set(map(coordinates_of, bronze))) == len(silver) + len(dead):
        yield "the counts sent, in bronze, and in silver plus dead letters differ"
    if counted != len(silver):
        yield "gold's counts do not add up to silver's rows"
    if not same_silver(silver, verdicts):
        yield "silver differs from the records that the oracle accepts"
    if not same_dead_letters(dead, verdicts):
        yield "the dead letters differ from the records that the oracle refuses, or have other reasons"
    clean = accepted(verdicts, Metric)
    yield from window_differences(gold, clean, settings)
    expected = metrics_1m(clean)
    errors = sorted(
        rank_error(expected[key]["values"], rank, row[name])
        for row in gold
        if (key := (row["service_id"], row["metric_name"], row["window_start"])) in expected
        for name, rank in PERCENTILES.items()
    )
    console.print(
        f"{len(expected):,} windows and {len(errors):,} percentiles compared with the oracle; rank error: "
        f"99 % of percentiles within {errors[int(len(errors) * 0.99)]:.4f}, worst {errors[-1]:.4f}"
    )


def _judge_topic(settings: Settings) -> dict[Coordinates, Judged]:
    """Validate the topic's records with the oracle. Only the landing time comes from bronze."""
    landed = {coordinates_of(row): row["ingested_at"] for row in rows_of(settings, BRONZE)}
    first_landing = min(landed.values())
    first, rest = list[Row](), list[Row]()
    for record in read_topic(settings.kafka.bootstrap_servers, METRICS[0].sources[0].topic):
        row: Row = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        row |= {"key": record.key, "value": record.value, "timestamp": record.timestamp * 1000}
        row["ingested_at"] = landed[coordinates_of(row)]
        (first if row["ingested_at"] == first_landing else rest).append(row)
    return judge_batches([first, rest], settings)


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
