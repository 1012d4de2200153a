"""`make bench`: events per second, CPU-seconds per million events and latency, on local services.

python -m benchmarks.bench backlog --stream sales --events 1000000
python -m benchmarks.bench hot
python -m benchmarks.bench closing
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from benchmarks.loads import in_turn
from benchmarks.measuring import Usage, application, used_by
from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples import Sample, producing
from lakehouse.dev.samples.loads import Load, send
from lakehouse.dev.services.services import local_services
from lakehouse.engine.layers import LAYERS, LayerName
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings, load_settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.registry import BY_DEFAULT, choose

app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True)
_FILE_WIDTH = 160  # width without a terminal; the default of 80 would cut off figures
console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
METRICS = BY_DEFAULT[:1]


@contextmanager
def bench_services() -> Iterator[Settings]:
    """Start a broker and a Redis with a temporary home and lake, and yield the settings for them."""
    with tempfile.TemporaryDirectory(prefix="lakehouse-bench-") as home:
        settings = load_settings().changed({"home": Path(home), "lake": f"{home}/lake", "topics": {}})
        with local_services(settings) as endpoints:
            update = {"kafka.bootstrap_servers": endpoints.kafka, "redis.url": SecretStr(endpoints.redis)}
            settings = settings.changed(update)
            topics = [topic for stream in BY_DEFAULT for topic in stream.topics]
            create_topics(endpoints.access, dict.fromkeys(topics, settings.kafka.topic_partitions))
            yield settings


@app.command()
def backlog(
    stream: Annotated[list[str] | None, typer.Option(help="Streams; by default metrics.")] = None,
    events: Annotated[int, typer.Option(min=1, help="Events of each stream in the backlog.")] = 1_000_000,
    warmup: Annotated[
        int, typer.Option(min=0, help="Warm-up events that go through all layers first.")
    ] = 300_000,
    faults: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.25,
            help="Share of malformed events, which is also the share of late and of repeated ones.",
        ),
    ] = 0.0,
    *,
    wide: Annotated[
        bool, typer.Option("--wide", help="Two gold rows for every three events, spread over months.")
    ] = False,
    by_layer: Annotated[bool, typer.Option("--by-layer", help="Run one layer after the other.")] = False,
) -> None:
    """Catch up with a backlog: all layers together, or layer by layer with the cost of each layer."""
    streams = choose(stream or ["metrics"], load_settings())
    names = [one.name for one in streams]
    with bench_services() as settings, open_lake(settings, "bench backlog", brief=False) as lake:
        loads = [in_turn(name, (warmup, events), wide=wide) for name in names]
        if warmup:
            for first, _ in loads:
                send(first, settings)
            run(lake, streams, LAYERS, settings, RunOptions(AVAILABLE_NOW))
        for _, load in loads:
            send(replace(load, malformed=faults, late=faults, duplicates=faults), settings)
        title = (
            f"backlog of {events:,} events for each of {', '.join(names)}, after {warmup:,} warm-up events"
        )
        table = Table(title=title)
        for heading in (
            "layer",
            "seconds",
            "events/s",
            "CPU-s per million events",
            "rows in",
            "rows written",
        ):
            table.add_column(heading, justify="right")
        total = Usage()
        for layer in LAYERS if by_layer else ():
            usage, done = _catch_up(lake, streams, [layer], settings)
            total = replace(total, wall_s=total.wall_s + usage.wall_s, cpu_s=total.cpu_s + usage.cpu_s)
            _add(table, layer, usage, events * len(names), done)
        if not by_layer:
            total, done = _catch_up(lake, streams, LAYERS, settings)
            for layer in LAYERS:
                steps = [step for step in done if step.query.startswith(f"{layer}.")]
                seconds = sum(step.duration_s for step in steps)
                console.print(f"{layer}: {seconds:.1f} s in {len(steps)} steps")
        _add(table, "all", total, events * len(names), [])
        console.print(table)


def _catch_up(
    lake: Lake,
    streams: Sequence[Stream],
    layers: Sequence[LayerName],
    settings: Settings,
) -> tuple[Usage, list[BatchDone]]:
    done: list[BatchDone] = []
    with used_by(*application()) as usage:
        run(lake, streams, layers, settings, RunOptions(AVAILABLE_NOW, on_batch=done.append))
    return usage, done


@app.command()
def hot(
    events: Annotated[int, typer.Option(min=1, help="Transactions in each run.")] = 1_000_000,
    repeat: Annotated[int, typer.Option(min=1, help="How often each case is measured.")] = 2,
) -> None:
    """Compare silver and gold of transactions with and without a user who causes half of the traffic."""
    streams = choose(["transactions"], load_settings())
    table = Table(title=f"{events:,} transactions, by the share of one user")
    for heading in ("share of one user", "gold seconds", "gold CPU-s", "silver seconds", "silver CPU-s"):
        table.add_column(heading, justify="right")
    with bench_services() as settings, open_lake(settings, "bench hot", brief=False) as lake:
        send(Load("transactions", 300_000, seed=1), settings)
        run(lake, streams, LAYERS, settings, RunOptions(AVAILABLE_NOW))
        for seed, share in enumerate((0.0, 0.5) * repeat, start=2):
            send(Load("transactions", events, seed=seed, shape={"hot_user": share}), settings)
            _catch_up(lake, streams, ["bronze"], settings)
            silver, _ = _catch_up(lake, streams, ["silver"], settings)
            gold, _ = _catch_up(lake, streams, ["gold"], settings)
            figures = (gold.wall_s, gold.cpu_s, silver.wall_s, silver.cpu_s)
            table.add_row(f"{share:.0%}", *(f"{figure:.1f}" for figure in figures))
    console.print(table)


def _add(table: Table, name: str, usage: Usage, events: int, done: Sequence[BatchDone]) -> None:
    written: Counter[str] = Counter()
    for batch in done:
        written.update(batch.result.written)
    table.add_row(
        name,
        f"{usage.wall_s:.1f}",
        f"{events / usage.wall_s:,.0f}",
        f"{usage.cpu_s / events * 1e6:.1f}",
        f"{sum(batch.result.rows for batch in done):,}" if done else "",
        ", ".join(f"{rows:,} {what}" for what, rows in written.items()),
    )


@app.command()
def closing(
    calls: Annotated[int, typer.Option(min=1, help="Number of one-sided calls to close.")] = 20,
    trigger: Annotated[str, typer.Option(help="Trigger interval of the layers.")] = "1 second",
) -> None:
    """Measure how long after its due time a call is closed when both topics are silent."""
    stop, lags, took = Stop(), dict[str, float](), list[float]()
    with bench_services() as defaults, open_lake(defaults, "bench closing", brief=False) as lake:
        settings = defaults.changed({"streams": {"calls": {"gap": "1s", "grace": "20s"}}})

        def on_batch(done: BatchDone) -> None:
            if done.query != "gold.call_records":
                return
            now = time.time()
            if done.batch is None:
                took.append(done.duration_s)
            for row in lake.read("gold", "call_records").where("status = 'closed'").collect():
                lags.setdefault(row.user1, now - row.closed_at.timestamp())

        options = RunOptions(trigger, stop=stop, on_batch=on_batch)
        args = (lake, choose(["calls"], settings), LAYERS[:3], settings, options)
        runner = threading.Thread(target=run, args=args)
        runner.start()
        try:
            for round_ in ("first", "second", "measured"):
                lags.clear()
                took.clear()
                for number in range(calls):
                    _one_sided(settings, f"{round_} {number}")
                    time.sleep(0.3)
                deadline = time.monotonic() + 120
                while (
                    sum(user.startswith(round_) for user in list(lags)) < calls
                    and time.monotonic() < deadline
                ):
                    time.sleep(0.5)
        finally:
            stop.request()
            runner.join()
    ordered = sorted(lag for user, lag in lags.items() if user.startswith("measured"))
    if len(ordered) < calls:
        raise LakehouseError(f"only {len(ordered)} of {calls} calls were closed within two minutes")
    console.print(
        f"{calls} calls closed with both topics silent, trigger {trigger}: "
        f"median {ordered[calls // 2]:.2f} s, worst {ordered[-1]:.2f} s after they were due; "
        f"{len(took)} closings took {statistics.mean(took):.2f} s on average"
    )


def _one_sided(settings: Settings, user: str) -> None:
    record = {"user1": user, "user2": "b", "timestamp": int(time.time() * 1000), "analytics": "x"}
    producing.produce(
        settings.kafka.access,
        "analyticsTopic",
        [Sample(b"k", json.dumps(record).encode(), "valid")],
    )


if __name__ == "__main__":
    app()
