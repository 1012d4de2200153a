"""The cost and memory of uneven loads, compared with even loads.

    python -m benchmarks.skew backlog --stream sales --json skew.json
    LAKEHOUSE_SPARK_DRIVER_MEMORY=1g \
        python -m benchmarks.skew backlog --case even --case "one pair" --stream calls
    python -m benchmarks.skew burst
    python -m benchmarks.skew cluster --stream transactions

`backlog` catches up, warm, with all layers together. Either nine in ten events have the same key, or every
event has its own key, or one producer's events are an hour older than all others. With `local[*]`, executors
run inside the driver and share its heap. `cluster` measures the same cases from a cold start on a standalone
cluster on this machine, where the driver and each executor have separate heaps. `burst` sends a hundred times
the rate to a running pipeline for ten seconds. After each case, rows and sums in gold, rows in Redis and dead
letters are compared with the events sent. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import redis
import typer
from rich.table import Table

from benchmarks.applications import Used, sampled
from benchmarks.bench import bench_services, console
from benchmarks.figures import Measured, show, write
from benchmarks.heap import Heap, HeapLog, log_of, logged
from benchmarks.measuring import application
from benchmarks.skew_burst import Burst, measure_burst
from benchmarks.skew_cluster import EXECUTORS, submit
from benchmarks.skew_loads import EVEN, Sender, cases, differences
from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples.loads import Load
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.registry import BY_DEFAULT, choose
from tests.support.cluster import Cluster

_STANDING = 20_000
_CPU = "CPU-s per million events"
# Names of figures.
_BEFORE, _AFTER = "heap before a collection, MB", "heap after a collection, MB"
# The columns: a short heading for each figure, and its number of decimal places.
_COLUMNS = {
    "events/s": ("events/s", 0),
    _CPU: ("CPU-s per million", 1),
    "gold rows changed": ("gold rows", 0),
    _BEFORE: ("most heap, MB", 0),
    _AFTER: ("after collecting", 0),
    "collecting, s": ("collecting, s", 1),
    "resident, MB": ("resident, MB", 0),
}
_EXECUTORS_BEFORE, _EXECUTORS_AFTER = (f"executors: {name}" for name in (_BEFORE, _AFTER))
_OF_EXECUTORS = {
    _EXECUTORS_BEFORE: ("executors' most", 0),
    _EXECUTORS_AFTER: ("after collecting", 0),
}

StreamOption = Annotated[list[str] | None, typer.Option(help="Only this stream; may be repeated.")]
CaseOption = Annotated[list[str] | None, typer.Option(help="Only this case; may be repeated.")]
EventsOption = Annotated[int, typer.Option(min=100, help="Events of each case.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]

app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True)


@dataclass(frozen=True)
class Found:
    """The resources that a case used, and the errors in its result."""

    used: Used
    heap: Heap
    changed: int
    wrong: Sequence[str]

    def figures(self, events: int) -> dict[str, float]:
        """Return all figures by name."""
        return {
            "events/s": events / self.used.wall_s,
            _CPU: self.used.cpu_s / events * 1e6,
            "gold rows changed": self.changed,
            _BEFORE: self.heap.before_mb,
            _AFTER: self.heap.after_mb,
            "full collections": self.heap.full,
            "collecting, s": self.heap.pause_s,
            "resident, MB": self.used.peak_mb,
        }


@app.command()
def backlog(
    *,
    stream: StreamOption = None,
    case: CaseOption = None,
    events: EventsOption = 1_000_000,
    warmup: Annotated[
        int, typer.Option(min=1, help="Evenly distributed warm-up events of each stream.")
    ] = 300_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each case is measured.")] = 1,
    json_: JsonOption = None,
) -> None:
    """Catch up with uneven backlogs. Each has its own lake and topics, and an empty Redis."""
    found, wrong = list[Measured](), list[str]()
    with bench_services() as settings, logged(settings.home / "heap"):
        for name in [one.name for one in choose(stream or [], settings)]:
            with open_lake(settings, "bench skew", brief=False) as lake:
                _catch_up(lake, _apart(settings, "warmup"), name, [Load(name, warmup, seed=1)])
                for number in range(1, rounds + 1):
                    chosen = list(_chosen(cases(name, events, seed=10 * number), case).items())
                    turn = number % len(chosen)
                    for one, loads in [*chosen[turn - 1 :], *chosen[: turn - 1]]:
                        result = _catch_up(lake, _apart(settings, f"{number}-{one}"), name, loads)
                        wrong += [f"{name}, {one}: {what}" for what in result.wrong]
                        found.append(Measured(f"{name}, {one}", number, result.figures(events)))
                        _say(found[-1], result.wrong)
        _print(f"{events:,} events after {warmup:,}, a heap of {settings.spark.driver_memory}", found)
    _end(found, wrong, json_)


@app.command()
def burst(
    *,
    rate: Annotated[float, typer.Option(min=1, help="Events per second before and after the burst.")] = 1000,
    times: Annotated[float, typer.Option(min=2, help="The burst's rate, as a multiple of the rate.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, help="How long the burst lasts.")] = 10,
    before: Annotated[float, typer.Option(min=1, help="Seconds between the start and the burst.")] = 30,
    after: Annotated[float, typer.Option(min=1, help="Seconds to measure after the lag is gone.")] = 30,
    json_: JsonOption = None,
) -> None:
    """Send a burst of metrics to a running pipeline, and measure how long it lags."""
    plan = Burst(rate, times, seconds, before, after)
    with bench_services() as settings, logged(settings.home / "heap"):
        figures, wrong = measure_burst(plan, settings)
        heap = settings.spark.driver_memory
        title = f"{rate:,.0f} events/s, {times:g} times that for {seconds:g} s, heap {heap}"
    found = [Measured("pipeline", 1, figures)]
    show(console, title, found)
    _end(found, wrong, json_)


@app.command()
def cluster(
    *,
    stream: StreamOption = None,
    case: CaseOption = None,
    events: EventsOption = 1_000_000,
    executor_memory: Annotated[str, typer.Option(help="Heap size of each of the two executors.")] = "1g",
    json_: JsonOption = None,
) -> None:
    """For each case, submit jobs/pipeline.py to a standalone cluster with two executors of one core each."""
    found, wrong = list[Measured](), list[str]()
    with bench_services() as settings, Cluster(settings.home / "cluster", cores=1) as standalone:
        for name in [one.name for one in choose(stream or ["transactions"], settings)]:
            for number, (one, loads) in enumerate(_chosen(cases(name, events, seed=1), case).items()):
                own = _apart(settings, f"{number}")
                with Sender(name, own) as sender:
                    sent = sender.send(loads)
                submitted = submit(name, own, standalone, executor_memory)
                different = differences(name, sent, own)
                wrong += [f"{name}, {one}: {what}" for what in different]
                result = Found(submitted.used, submitted.driver, sent.rows or 0, different)
                executors = {_EXECUTORS_BEFORE: submitted.executors.before_mb}
                executors |= {_EXECUTORS_AFTER: submitted.executors.after_mb}
                found.append(Measured(f"{name}, {one}", 1, result.figures(events) | executors))
                _say(found[-1], different)
        heaps = f"driver {settings.spark.driver_memory}, each of {EXECUTORS} executors {executor_memory}"
        _print(f"{events:,} events from a cold start; heaps: {heaps}", found, _COLUMNS | _OF_EXECUTORS)
    _end(found, wrong, json_)


def _chosen(all_: dict[str, list[Load]], names: Sequence[str] | None) -> dict[str, list[Load]]:
    return {name: loads for name, loads in all_.items() if not names or name in names}


def _apart(settings: Settings, name: str) -> Settings:
    """Return settings with a separate lake and separate topics, and empty Redis."""
    word = "".join(letter if letter.isalnum() else "-" for letter in name)
    ins = [topic for stream in BY_DEFAULT for topic in stream.topics]
    outs = [table.export.topic for stream in BY_DEFAULT for table in stream.tables if table.export.topic]
    topics = {topic: f"{topic}-{word}" for topic in (*ins, *outs)}
    with redis.Redis.from_url(settings.redis.url.get_secret_value()) as client:
        client.flushdb(asynchronous=True)  # a million keys take seconds
    return settings.changed({"lake": f"{settings.lake}-{word}", "topics": topics})


def _catch_up(lake: Lake, settings: Settings, stream: str, loads: Sequence[Load]) -> Found:
    """Catch up with loads, after a few even events that create the tables and give them a watermark."""
    own, streams, done = Lake(lake.spark, settings.lake), choose([stream], settings), list[BatchDone]()
    with Sender(stream, settings) as sender:
        sender.send([Load(stream, _STANDING, seed=9)])
        run(own, streams, LAYERS, settings, RunOptions(AVAILABLE_NOW))
        sent = sender.send(loads)
    log = HeapLog(log_of(settings.home / "heap", application()[1].pid))
    with sampled(application) as used:
        run(own, streams, LAYERS, settings, RunOptions(AVAILABLE_NOW, on_batch=done.append))
    table = streams[0].gold[0].name
    changed = sum(one.result.written.get(table, 0) for one in done)
    return Found(used, log.heap(), changed, differences(stream, sent, settings))


def _print(title: str, found: Sequence[Measured], columns: Mapping[str, tuple[str, int]] = _COLUMNS) -> None:
    """Print a line for each case, with the medians over rounds and its CPU time relative to the even case."""
    table = Table(title=title)
    table.add_column("")
    for heading, _ in columns.values():
        table.add_column(heading, justify="right")
    table.add_column("× even", justify="right")
    for who in dict.fromkeys(one.who for one in found):
        own = {one.round: one.figures for one in found if one.who == who}
        even = {one.round: one.figures for one in found if one.who == f"{who.partition(', ')[0]}, {EVEN}"}
        ratios = [own[number][_CPU] / even[number][_CPU] for number in own.keys() & even.keys()]
        cells = [
            f"{statistics.median(one[name] for one in own.values()):,.{digits}f}"
            for name, (_, digits) in columns.items()
        ]
        table.add_row(who, *cells, f"{statistics.median(ratios):.2f}" if ratios else "")
    console.print(table)


def _say(one: Measured, wrong: Sequence[str]) -> None:
    figures = ", ".join(f"{name} {value:,.1f}" for name, value in one.figures.items())
    console.print(f"{one.who}, round {one.round}: {figures}; {'; '.join(wrong) or 'right'}", markup=False)


def _end(found: Sequence[Measured], wrong: Sequence[str], file: Path | None) -> None:
    write(file, found)
    for what in wrong:
        console.print(f"DIFFERENT: {what}", style="red", markup=False)
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
