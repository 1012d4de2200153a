"""The pipeline and a Kafka Streams application of the same job, one after the other on the same backlog.

python -m benchmarks.side_by_side --stream metrics --events 1000000 --rounds 3
python -m benchmarks.side_by_side --stream sales --json sales.json --plot sales.png

Each round sends events while both are idle, and lets first the one and then the other catch up with them;
which of them is first changes. What both have made of the events is compared with what these come to.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
from pyspark.sql import SparkSession
from rich.table import Table

from benchmarks import peer
from benchmarks.bench import bench_services, console
from benchmarks.measuring import application, cpu_seconds
from lakehouse import tables
from lakehouse.errors import LakehouseError
from lakehouse.layer import LAYERS
from lakehouse.loads import Load, send
from lakehouse.runner import run
from lakehouse.session import start_session
from lakehouse.settings import Settings
from lakehouse.streams import choose
from lakehouse.topics import create_topics
from lakehouse.triggers import AVAILABLE_NOW

PIPELINE, PEER = "pipeline", "Kafka Streams"
_GOLD = {
    "metrics": ("metrics_1m", "count"),
    "calls": ("call_records", "analytics_events + metrics_events"),
    "sales": ("product_sales", "count"),
    "transactions": ("user_transactions_5m", "count"),
}
_SAMPLED_EVERY_S = 0.2

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Measured:
    """A catch-up of one of both: from its start to the last committed result, broker and Redis apart."""

    who: str
    round: int
    events_per_s: float
    cpu_s_per_million: float
    peak_mb: float


@app.command()
def compare(
    *,
    stream: Annotated[str, typer.Option(help="Which stream.")] = "metrics",
    events: Annotated[int, typer.Option(min=1, help="Events of each round.")] = 1_000_000,
    warmup: Annotated[int, typer.Option(min=1, help="Events that both catch up with first.")] = 300_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each of both is measured.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of Kafka Streams.")] = 2,
    json_: Annotated[Path | None, typer.Option("--json", help="Write every figure there.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this PNG.")] = None,
) -> None:
    """Measure events a second, CPU-seconds per million events and memory of both, warm, by turns."""
    peer.build()
    with bench_services() as settings, start_session(settings, "side by side", brief=False) as spark:
        create_topics(
            settings.kafka_bootstrap_servers, dict.fromkeys(peer.OUTPUTS[stream], settings.topic_partitions)
        )
        send(Load(stream, 1, seed=0), settings)  # makes the topics
        with (
            closing(peer.Outcome(settings, stream)) as outcome,
            peer.running(settings, stream, threads=threads) as other,
        ):
            found = _Comparison(spark, settings, stream, other, outcome).measure(warmup, events, rounds)
    _print(stream, events, found)
    if json_ is not None:
        json_.write_text(json.dumps([asdict(one) for one in found], indent=1))
    if plot is not None:
        _draw(plot, stream, events, found)


class _Comparison:
    def __init__(
        self, spark: SparkSession, settings: Settings, stream: str, other: peer.Peer, outcome: peer.Outcome
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._stream = stream
        self._other = other
        self._outcome = outcome
        self._expected = peer.Expected(stream)

    def measure(self, warmup: int, events: int, rounds: int) -> list[Measured]:
        """Return what both have needed in each round."""
        self._expected.add(Load(self._stream, 1, seed=0).samples(self._settings))
        found: list[Measured] = []
        for number in range(rounds + 1):
            self._other.pause()
            load = Load(self._stream, events if number else warmup, seed=number + 1)
            send(load, self._settings)
            self._expected.add(load.samples(self._settings))
            order = (PIPELINE, PEER) if number % 2 else (PEER, PIPELINE)
            done = [self._catch_up(who, number, load.events) for who in order]
            self._check()
            if number:
                found += done
                for one in done:
                    console.print(f"round {number}, {one.who}: {one.events_per_s:,.0f} events/s")
        return found

    def _catch_up(self, who: str, number: int, events: int) -> Measured:
        processes = application() if who == PIPELINE else [self._other.process]
        before, began = sum(map(cpu_seconds, processes)), time.monotonic()
        with _peak_of(processes) as peak:
            if who == PIPELINE:
                run(
                    self._spark,
                    choose([self._stream]),
                    LAYERS,
                    self._settings,
                    trigger=AVAILABLE_NOW,
                    trips=True,
                )
            else:
                self._other.resume()
                self._outcome.await_events(self._expected.events)
                self._other.pause()
        took_s, cpu_s = time.monotonic() - began, sum(map(cpu_seconds, processes)) - before
        return Measured(who, number, events / took_s, cpu_s / events * 1e6, max(peak) / 2**20)

    def _check(self) -> None:
        name, counted = _GOLD[self._stream]
        path = tables.path_of(self._settings.lake, "gold", name)
        (row,) = tables.read(self._spark, path).selectExpr(f"sum({counted}) AS events").collect()
        if row.events != self._expected.events:
            raise LakehouseError(f"gold counts {row.events:,} of {self._expected.events:,} events")
        difference = self._outcome.difference(self._expected)
        if difference is not None:
            raise LakehouseError(difference)


@contextmanager
def _peak_of(processes: Sequence[psutil.Process]) -> Iterator[list[int]]:
    """Sample the resident memory of the processes, together, inside the block."""
    seen, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLED_EVERY_S):
            seen.append(sum(one.memory_info().rss for one in processes))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


_FIGURES = (
    ("events/s", lambda one: one.events_per_s, "{:,.0f}"),
    ("CPU-s per million events", lambda one: one.cpu_s_per_million, "{:.1f}"),
    ("peak memory, MB", lambda one: one.peak_mb, "{:,.0f}"),
)


def _print(stream: str, events: int, found: Sequence[Measured]) -> None:
    table = Table(title=f"{stream}: {events:,} events a round, warm; median (least to greatest)")
    table.add_column("")
    for name, _, _ in _FIGURES:
        table.add_column(name, justify="right")
    for who in (PIPELINE, PEER):
        cells = []
        for _, figure_of, form in _FIGURES:
            figures = [figure_of(one) for one in found if one.who == who]
            ends = f"{form.format(min(figures))} to {form.format(max(figures))}"
            cells.append(f"{form.format(statistics.median(figures))} ({ends})")
        table.add_row(who, *cells)
    console.print(table)


def _draw(file: Path, stream: str, events: int, found: Sequence[Measured]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes a second, which only a plot needs

    figure = Figure(figsize=(10, 3.5), layout="constrained")
    figure.suptitle(f"{stream}: {events:,} events a round, warm")
    for axes, (name, figure_of, _) in zip(figure.subplots(1, len(_FIGURES)), _FIGURES, strict=True):
        for place, who in enumerate((PIPELINE, PEER)):
            figures = [figure_of(one) for one in found if one.who == who]
            axes.bar(place, statistics.median(figures), color=("tab:blue", "tab:orange")[place], alpha=0.6)
            axes.plot([place] * len(figures), figures, "k.")
        axes.set_xticks([0, 1], [PIPELINE, PEER])
        axes.set_title(name)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    app()
