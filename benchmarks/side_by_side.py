"""The pipeline and a Kafka Streams application of the same job, one after the other on the same backlog.

python -m benchmarks.side_by_side warm --stream metrics --events 1000000 --rounds 3
python -m benchmarks.side_by_side cold --stream sales --json sales.json --plot sales.png

Each round sends events while both are idle, and lets first the one and then the other catch up with them;
which of them is first changes. Warm, both have caught up with other events before; cold, both are started
for it, and that counts. What both have made of the events is compared with what these come to.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from deltalake import DeltaTable

from benchmarks import peer
from benchmarks.applications import Used, pipeline, sampled
from benchmarks.bench import bench_services, console
from benchmarks.figures import KAFKA_STREAMS, PIPELINE, Measured, draw, show, write
from benchmarks.measuring import application
from lakehouse.errors import LakehouseError
from lakehouse.layers.step import LAYERS
from lakehouse.runtime.runner import RunOptions, run
from lakehouse.runtime.triggers import AVAILABLE_NOW
from lakehouse.sandbox.loads import Load, send
from lakehouse.settings import Settings
from lakehouse.streams import choose
from lakehouse.tables import Lake, open_lake
from lakehouse.topics import create_topics

_THREADS = 2
_GOLD = {
    "metrics": ("metrics_1m", ("count",)),
    "calls": ("call_records", ("analytics_events", "metrics_events")),
    "sales": ("product_sales", ("count",)),
    "transactions": ("user_transactions_5m", ("count",)),
}

app = typer.Typer(add_completion=False)


StreamOption = Annotated[str, typer.Option(help="Which stream.")]
EventsOption = Annotated[int, typer.Option(min=1, help="Events of each round.")]
RoundsOption = Annotated[int, typer.Option(min=1, help="How often each of both is measured.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write every figure there.")]
PlotOption = Annotated[Path | None, typer.Option(help="Draw the figures into this PNG.")]


@app.command()
def warm(
    *,
    stream: StreamOption = "metrics",
    events: EventsOption = 1_000_000,
    warmup: Annotated[int, typer.Option(min=1, help="Events that both catch up with first.")] = 300_000,
    rounds: RoundsOption = 3,
    json_: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure events a second, CPU-seconds per million events and memory of both, warm, by turns."""
    peer.build()
    with (
        _topics(stream) as settings,
        open_lake(settings, "side by side", brief=False) as lake,
        closing(peer.Outcome(settings, stream)) as outcome,
        peer.running(settings, stream, threads=_THREADS) as other,
    ):
        found = _Comparison(lake, settings, stream, other, outcome).measure(warmup, events, rounds)
    _tell(f"{stream}: {events:,} events a round, warm", found, json_, plot)


@app.command()
def cold(
    *,
    stream: StreamOption = "metrics",
    events: EventsOption = 1_000_000,
    rounds: RoundsOption = 3,
    json_: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure the same from the start of both, each in a lake and topics of its own, start-up included."""
    peer.build()
    found = []
    for number in range(1, rounds + 1):
        order = (PIPELINE, KAFKA_STREAMS) if number % 2 else (KAFKA_STREAMS, PIPELINE)
        for who in order:
            found.append(_start_with(who, stream, events, number))
            _print(found[-1])
    _tell(f"{stream}: {events:,} events, from a cold start", found, json_, plot)


def _start_with(who: str, stream: str, events: int, number: int) -> Measured:
    with _topics(stream) as settings:
        load = Load(stream, events, seed=number)
        expected = _expected(stream, settings)
        send(load, settings)
        expected.add(load.samples(settings))
        if who == PIPELINE:
            with pipeline(settings, "--stream", stream, "--trigger", AVAILABLE_NOW) as one:
                with sampled(lambda: one.processes) as used:
                    code = one.popen.wait()
                if code or one.lines()[-1]["message"] != "caught up":
                    raise LakehouseError(f"the pipeline has ended with {code}: {one.lines()[-1]['message']}")
            table, counted = _GOLD[stream]
            rows = DeltaTable(f"{settings.lake}/gold/{table}").to_pyarrow_table()
            _check_count(sum(sum(rows.column(name).to_pylist()) for name in counted), expected)
        else:
            with closing(peer.Outcome(settings, stream)) as outcome:
                began = time.monotonic()
                with peer.running(settings, stream, threads=_THREADS) as other:
                    with sampled(lambda: [other.process]) as used:
                        outcome.await_events(expected.events)
                    used.wall_s = time.monotonic() - began
                _check_peer(outcome, expected)
        return _measured(who, number, events, used)


def _tell(title: str, found: Sequence[Measured], json_: Path | None, plot: Path | None) -> None:
    show(console, title, found)
    write(json_, found)
    draw(plot, title, found, list(found[0].figures))


@contextmanager
def _topics(stream: str) -> Iterator[Settings]:
    """Start a broker and a Redis with the topics of both."""
    with bench_services() as settings:
        topics = dict.fromkeys(peer.OUTPUTS[stream], settings.topic_partitions)
        create_topics(settings.kafka_bootstrap_servers, topics)
        send(_first(stream), settings)  # makes the others
        yield settings


def _first(stream: str) -> Load:
    return Load(stream, 1, seed=0)


def _expected(stream: str, settings: Settings) -> peer.Expected:
    expected = peer.Expected(stream)
    expected.add(_first(stream).samples(settings))
    return expected


def _measured(who: str, number: int, events: int, used: Used) -> Measured:
    figures = {
        "events/s": events / used.wall_s,
        "CPU-s per million events": used.cpu_s / events * 1e6,
        "peak memory, MB": used.peak_mb,
    }
    return Measured(who, number, figures)


def _print(one: Measured) -> None:
    console.print(f"round {one.round}, {one.who}: {one.figures['events/s']:,.0f} events/s")


def _check_count(found: int, expected: peer.Expected) -> None:
    if found != expected.events:
        raise LakehouseError(f"gold counts {found:,} of {expected.events:,} events")


def _check_peer(outcome: peer.Outcome, expected: peer.Expected) -> None:
    difference = outcome.difference(expected)
    if difference is not None:
        raise LakehouseError(difference)


class _Comparison:
    def __init__(
        self, lake: Lake, settings: Settings, stream: str, other: peer.Peer, outcome: peer.Outcome
    ) -> None:
        self._lake = lake
        self._settings = settings
        self._stream = stream
        self._other = other
        self._outcome = outcome
        self._expected = _expected(stream, settings)

    def measure(self, warmup: int, events: int, rounds: int) -> list[Measured]:
        """Return what both have needed in each round."""
        found: list[Measured] = []
        for number in range(rounds + 1):
            self._other.pause()
            load = Load(self._stream, events if number else warmup, seed=number + 1)
            send(load, self._settings)
            self._expected.add(load.samples(self._settings))
            order = (PIPELINE, KAFKA_STREAMS) if number % 2 else (KAFKA_STREAMS, PIPELINE)
            done = [self._catch_up(who, number, load.events) for who in order]
            self._check()
            if number:
                found += done
                for one in done:
                    _print(one)
        return found

    def _catch_up(self, who: str, number: int, events: int) -> Measured:
        with sampled(application if who == PIPELINE else lambda: [self._other.process]) as used:
            if who == PIPELINE:
                streams = choose([self._stream], self._settings)
                run(self._lake, streams, LAYERS, self._settings, RunOptions(AVAILABLE_NOW))
            else:
                self._other.resume()
                self._outcome.await_events(self._expected.events)
                self._other.pause()
        return _measured(who, number, events, used)

    def _check(self) -> None:
        name, counted = _GOLD[self._stream]
        (row,) = self._lake.read("gold", name).selectExpr(f"sum({' + '.join(counted)}) AS events").collect()
        _check_count(row.events, self._expected)
        _check_peer(self._outcome, self._expected)


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
