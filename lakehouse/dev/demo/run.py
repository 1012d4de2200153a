"""Run all four streams end to end on local services, as `lakehouse demo` does.

All files are under `<home>/demo`, and each run recreates them. The services are stopped at the end or,
with `--serve`, when the user stops the demo. The tables remain for `lakehouse sql` and `lakehouse serve`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lakehouse.common.errors import LakehouseError
from lakehouse.common.state_files import make_home
from lakehouse.common.terminal import Console
from lakehouse.dev.demo import EVENTS
from lakehouse.dev.demo.report import Done, show_layer, summarise, what_next
from lakehouse.dev.demo.serving import serve_until_stopped
from lakehouse.dev.samples.loads import Load, send
from lakehouse.dev.services.services import local_services
from lakehouse.dev.services.services import stop as stop_services
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.ops_tables.event_table import recorded
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.signals import Stop, stopping_on_signals
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.running import noted_run
from lakehouse.settings import Settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.registry import load

_SHAPES: Mapping[str, Mapping[str, float]] = {
    "sales": {"tombstones": 0.002},
    "transactions": {"hot_user": 0.1},
}
_STEPS = {
    "bronze": "land Kafka records unchanged",
    "silver": "keep clean records, quarantine the others",
    "gold": "merge clean records into tables",
    "export": "push changed rows to Kafka and Redis",
}


def demo(settings: Settings, console: Console, *, serve_at: int | None = None) -> None:
    """Run every stream end to end, and print the results.

    With `serve_at`, the services, the layers and a server on that port keep running until SIGTERM or
    Ctrl-C. Raises LakehouseError for errors that a user can fix, or if the row counts do not agree.
    """
    home = settings.home / "demo"
    update = {
        "home": home,
        "lake": str(home / "lake"),
        "topics": {},
        # Micro-batches are small, so that there are several to watch and all but the first have a watermark.
        "run.max_records": max(1, max(EVENTS.values()) // 4),
        "run.max_bytes": 2097152,
    }
    settings = settings.changed(update)
    make_home(home.parent)
    stop_services(settings)  # otherwise services from an earlier run would lose their files
    shutil.rmtree(home, ignore_errors=True)
    console.print("lakehouse demo: four streams from Kafka to gold and out again", style="bold")
    console.print(f"all files are under {home}")
    began = time.monotonic()
    with local_services(
        settings, brief=True, on_progress=lambda message: console.print(f"  {message}")
    ) as at:
        settings = settings.changed(at.update)
        streams = load(settings)
        topics = (topic for stream in streams for topic in stream.topics)
        create_topics(settings.kafka.access, dict.fromkeys(topics, settings.kafka.topic_partitions))
        done = Done()
        _produce(settings, done, console)
        console.print("  starting Spark")
        with (
            recorded(settings.lake, "lakehouse demo"),
            open_lake(settings, "lakehouse demo") as lake,
            stopping_on_signals(lake.spark) as stop,
        ):
            with noted_run(streams, LAYERS, AVAILABLE_NOW, stop):
                _run_layers(lake, settings, done, console, stop)
            if stop.requested:
                console.print("stopped; the demo can be run again")
                return
            summarise(lake, done, console)
        took_s = time.monotonic() - began
        if serve_at is not None:
            serve_until_stopped(settings, serve_at, console)
    console.print(f"services stopped; the demo took {took_s:.0f} s")
    console.print()
    what_next(settings, console)


def _produce(settings: Settings, done: Done, console: Console) -> None:
    with _progress(console) as progress:
        for stream, events in EVENTS.items():
            load = Load(
                stream, events, malformed=0.01, late=0.02, duplicates=0.01, shape=_SHAPES.get(stream, {})
            )
            topics = " and ".join(load.topics(settings))
            task = progress.add_task(f"produce: {topics}", total=events)
            summary = send(load, settings, on_progress=partial(_sent, progress, task))
            if summary.failed:
                raise LakehouseError(
                    f"{summary.failed:,} of {events:,} events for {topics} were not delivered: "
                    f"{summary.first_error}"
                )
            done.produced[stream] = summary


def _sent(progress: Progress, task: TaskID, state: object) -> None:
    progress.update(task, completed=getattr(state, "sent", 0))


def _run_layers(lake: Lake, settings: Settings, done: Done, console: Console, stop: Stop) -> None:
    expected = sum(summary.acknowledged for summary in done.produced.values())
    for layer in LAYERS:
        began, before = time.monotonic(), len(done.batches)
        with _progress(console) as progress:
            task = progress.add_task(f"{layer}: {_STEPS[layer]}", total=expected or None)
            run(
                lake,
                load(settings),
                [layer],
                settings,
                RunOptions(AVAILABLE_NOW, on_batch=partial(_advance, progress, task, done), stop=stop),
            )
            done.layer_s[layer] = time.monotonic() - began
            batches = done.batches[before:]
            rows = sum(batch.result.rows for batch in batches)
            progress.update(task, total=rows, completed=rows)
        if stop.requested:
            return
        show_layer(layer, lake, settings, console)
        # A layer passes on no more rows than it received.
        expected = sum(next(iter(batch.result.written.values()), 0) for batch in batches)


def _advance(progress: Progress, task: TaskID, done: Done, batch: BatchDone) -> None:
    done.batches.append(batch)
    progress.advance(task, batch.result.rows)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("  {task.description:<46}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield progress
