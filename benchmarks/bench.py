"""`make bench`: events per second, CPU-seconds per million events and latency, on embedded services.

python -m benchmarks.bench backlog --events 1000000
python -m benchmarks.bench live --rate 10000 --seconds 60
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Latencies, Usage, application, used_by
from lakehouse.layer import LAYERS
from lakehouse.local.services import local_services
from lakehouse.producing import Summary, produce
from lakehouse.runner import AVAILABLE_NOW, BatchDone, Stop, run
from lakehouse.samples import metrics as samples_of_metrics
from lakehouse.samples import paced_times, spread_times
from lakehouse.session import start_session
from lakehouse.settings import Settings, load_settings
from lakehouse.streams import choose
from lakehouse.topics import create_topics

app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True)
console = Console(soft_wrap=True, highlight=False)
STREAMS = choose(["metrics"])
SPAN_S = 600.0


@contextmanager
def bench_services() -> Iterator[Settings]:
    """Start a broker and a Redis with a home and a lake that are gone at the end; yield their settings."""
    with tempfile.TemporaryDirectory(prefix="lakehouse-bench-") as home:
        settings = load_settings().model_copy(
            update={"home": Path(home), "lake": f"{home}/lake", "topics": {}}
        )
        with local_services(settings) as endpoints:
            update = {"kafka_bootstrap_servers": endpoints.kafka, "redis_url": SecretStr(endpoints.redis)}
            settings = settings.model_copy(update=update)
            topics = [topic for stream in STREAMS for topic in stream.topics]
            create_topics(endpoints.kafka, dict.fromkeys(topics, settings.topic_partitions))
            yield settings


def _produce(settings: Settings, events: int, seed: int, rate: float | None = None) -> Summary:
    times = paced_times(rate) if rate else spread_times(events, end_ms=int(time.time() * 1000), span_s=SPAN_S)
    samples = samples_of_metrics.samples(events, times, seed=seed, ahead_s=2 * SPAN_S + 3600)
    return produce(settings.kafka_bootstrap_servers, "metrics-events", samples, rate=rate, total=events)


@app.command()
def backlog(
    events: Annotated[int, typer.Option(min=1, help="Events in the backlog.")] = 1_000_000,
    warmup: Annotated[int, typer.Option(min=0, help="Events that go through all layers first.")] = 300_000,
) -> None:
    """Catch up with a backlog, layer by layer, and say what each layer costs."""
    with bench_services() as settings, start_session(settings, "bench backlog") as spark:
        if warmup:
            _produce(settings, warmup, seed=1)
            run(spark, STREAMS, LAYERS, settings, trigger=AVAILABLE_NOW)
        _produce(settings, events, seed=2)
        table = Table(title=f"backlog of {events:,} metrics events after {warmup:,} to warm up")
        for heading in ("layer", "seconds", "events/s", "CPU-s per million events", "rows written"):
            table.add_column(heading, justify="right")
        total = Usage()
        for layer in LAYERS:
            done: list[BatchDone] = []
            with used_by(*application()) as usage:
                run(spark, STREAMS, [layer], settings, trigger=AVAILABLE_NOW, on_batch=done.append)
            written: dict[str, int] = {}
            for batch in done:
                for name, rows in batch.result.written.items():
                    written[name] = written.get(name, 0) + rows
            total = replace(total, wall_s=total.wall_s + usage.wall_s, cpu_s=total.cpu_s + usage.cpu_s)
            _add(table, layer, usage, events, ", ".join(f"{rows:,} {name}" for name, rows in written.items()))
        _add(table, "all", total, events, "")
        console.print(table)


def _add(table: Table, name: str, usage: Usage, events: int, written: str) -> None:
    table.add_row(
        name,
        f"{usage.wall_s:.1f}",
        f"{events / usage.wall_s:,.0f}",
        f"{usage.cpu_s / events * 1e6:.1f}",
        written,
    )


@app.command()
def live(
    rate: Annotated[float, typer.Option(min=1, help="Events a second.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long to measure.")] = 60,
    warmup_seconds: Annotated[float, typer.Option(min=0, help="How long to run before measuring.")] = 60,
    trigger: Annotated[str, typer.Option(help="Interval of the layers.")] = "1 second",
) -> None:
    """Run all layers in one application while events arrive, and say how old they are in Redis."""
    with bench_services() as settings, start_session(settings, "bench live") as spark:
        stop = Stop()
        rounds: list[BatchDone] = []
        runner = threading.Thread(
            target=run,
            args=(spark, STREAMS, LAYERS, settings),
            kwargs={"trigger": trigger, "stop": stop, "on_batch": rounds.append},
        )
        runner.start()
        try:
            if warmup_seconds:
                _produce(settings, int(rate * warmup_seconds), seed=1, rate=rate)
            _measure_live(settings, rate, seconds, rounds)
        finally:
            stop.request()
            runner.join()


def _measure_live(settings: Settings, rate: float, seconds: float, rounds: list[BatchDone]) -> None:
    rounds.clear()
    url = settings.redis_url.get_secret_value()
    _, *jvm = application()
    events = int(rate * seconds)
    with (
        Latencies(url, "metrics_1m", samples_of_metrics.METRICS).observed() as latencies,
        used_by(*jvm) as usage,
    ):
        summary = _produce(settings, events, seed=2, rate=rate)
    measured = list(rounds)
    table = Table(title=f"live: {summary.actual_rate:,.0f} events/s for {summary.duration_s:.0f} s")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
        table.add_row(f"{name}, produce to Redis", f"{latencies.percentile_s(share):.2f} s")
    table.add_row("CPU-s per million events (Spark)", f"{usage.cpu_s / events * 1e6:.1f}")
    table.add_row("cores busy (Spark)", f"{usage.cpu_s / usage.wall_s:.2f}")
    for layer in LAYERS:
        batches = [batch for batch in measured if batch.query.startswith(f"{layer}.")]
        busy = sum(batch.duration_s for batch in batches)
        table.add_row(
            f"{layer}: micro-batches, mean seconds",
            f"{len(batches)}, {busy / max(1, len(batches)):.2f}",
        )
    worst = ", ".join(f"{latency:.1f}" for _, latency in sorted(latencies.timeline.items()))
    table.add_row("worst latency in each 30 s", f"{worst} s")
    console.print(table)


if __name__ == "__main__":
    app()
