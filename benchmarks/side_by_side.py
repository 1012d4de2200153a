"""The pipeline and a Kafka Streams application with the same jobs, one after the other on the same backlog.

python -m benchmarks.side_by_side warm --stream metrics --events 1000000 --rounds 3
python -m benchmarks.side_by_side warm --stream metrics --stream calls --stream sales --stream transactions
python -m benchmarks.side_by_side warm --stream calls --wide --events 300000 --rounds 1
python -m benchmarks.side_by_side cold --stream sales --json sales.json --plot sales.png

Each round sends events while both applications are idle. Then they catch up one after the other, in an order
that alternates. With `warm`, both have caught up with other events before. With `cold`, each is started for
the round, and its start is included. The results of both are compared with the expected results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from deltalake import DeltaTable

from benchmarks import peer
from benchmarks.applications import Used, pipeline, sampled
from benchmarks.bench import bench_services, console
from benchmarks.figures import KAFKA_STREAMS, PIPELINE, Measured, draw, show, write
from benchmarks.loads import in_turn
from benchmarks.measuring import application
from lakehouse.common.errors import LakehouseError
from lakehouse.dev.samples.loads import Load, send
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings, load_settings
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.registry import choose

_THREADS = 2
_GOLD = {
    "metrics": ("metrics_1m", ("count",)),
    "calls": ("call_records", ("analytics_events", "metrics_events")),
    "sales": ("product_sales", ("count",)),
    "transactions": ("user_transactions_5m", ("count",)),
}

app = typer.Typer(add_completion=False)


StreamOption = Annotated[list[str] | None, typer.Option(help="Streams; by default metrics.")]
EventsOption = Annotated[int, typer.Option(min=1, help="Events of each stream in each round.")]
WideOption = Annotated[
    bool, typer.Option("--wide", help="Two gold rows for every three events, spread over months.")
]
RoundsOption = Annotated[int, typer.Option(min=1, help="How often each application is measured.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]
PlotOption = Annotated[Path | None, typer.Option(help="Plot the figures to this PNG.")]


@app.command()
def warm(
    *,
    stream: StreamOption = None,
    events: EventsOption = 1_000_000,
    warmup: Annotated[
        int, typer.Option(min=1, help="Warm-up events that both catch up with first.")
    ] = 300_000,
    rounds: RoundsOption = 3,
    wide: WideOption = False,
    json_: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure both applications alternately, warm: events/s, CPU-seconds per million events, and memory."""
    peer.build()
    streams = _chosen(stream)
    loads = _Loads(streams, [warmup, *[events] * rounds], wide=wide)
    with (
        _topics(loads) as settings,
        open_lake(settings, "side by side", brief=False) as lake,
        _outcomes(settings, streams) as outcomes,
        peer.running(settings, streams, threads=_THREADS) as other,
    ):
        found = _Comparison(lake, settings, loads, other, outcomes).measure()
    _tell(f"{loads}: {events:,} events per round, warm", found, json_, plot)


@app.command()
def cold(
    *,
    stream: StreamOption = None,
    events: EventsOption = 1_000_000,
    rounds: RoundsOption = 3,
    json_: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure both applications from a cold start, each with its own lake and topics.

    The figures are the same as for `warm`, and include the start.
    """
    peer.build()
    loads = _Loads(_chosen(stream), [events] * rounds)
    found = []
    for number in range(rounds):
        order = (KAFKA_STREAMS, PIPELINE) if number % 2 else (PIPELINE, KAFKA_STREAMS)
        for who in order:
            found.append(_start_with(who, loads, number))
            _print(found[-1])
    _tell(f"{loads}: {events:,} events, from a cold start", found, json_, plot)


def _start_with(who: str, loads: _Loads, number: int) -> Measured:
    with _topics(loads) as settings:
        expected = _expected(loads, settings)
        events = _send(loads.of_round(number), settings, expected)
        if who == PIPELINE:
            arguments = [word for stream in loads.streams for word in ("--stream", stream)]
            with pipeline(settings, *arguments, "--trigger", AVAILABLE_NOW) as one:
                with sampled(lambda: one.processes) as used:
                    code = one.popen.wait()
                if code or one.lines()[-1]["message"] != "caught up":
                    raise LakehouseError(
                        f"the pipeline exited with code {code}: {one.lines()[-1]['message']}"
                    )
            for one_expected in expected:
                table, counted = _GOLD[one_expected.stream]
                rows = DeltaTable(f"{settings.lake}/gold/{table}").to_pyarrow_table(columns=list(counted))
                _check_count(sum(sum(rows.column(name).to_pylist()) for name in counted), one_expected)
        else:
            with _outcomes(settings, loads.streams) as outcomes:
                began = time.monotonic()
                with peer.running(settings, loads.streams, threads=_THREADS) as other:
                    with sampled(lambda: [other.process]) as used:
                        _await(outcomes, expected)
                    used.wall_s = time.monotonic() - began
                _check_peer(outcomes, expected)
        return _measured(who, number + 1, events, used)


def _tell(title: str, found: Sequence[Measured], json_: Path | None, plot: Path | None) -> None:
    show(console, title, found)
    write(json_, found)
    draw(plot, title, found, list(found[0].figures))


@dataclass(frozen=True)
class _Loads:
    """The loads for each stream: a single event that creates its topics, and then one load for each round."""

    streams: Sequence[str]
    sizes: Sequence[int]
    wide: bool = False

    def __str__(self) -> str:
        return f"{' and '.join(self.streams)}{', wide' if self.wide else ''}"

    def first(self) -> list[Load]:
        """Return a load with a single event for each stream."""
        return self._numbered(0)

    def of_round(self, number: int) -> list[Load]:
        """Return the loads for a round, counted from 0."""
        return self._numbered(number + 1)

    def _numbered(self, number: int) -> list[Load]:
        return [in_turn(stream, [1, *self.sizes], wide=self.wide)[number] for stream in self.streams]


def _chosen(streams: list[str] | None) -> list[str]:
    return [one.name for one in choose(streams or ["metrics"], load_settings())]


@contextmanager
def _topics(loads: _Loads) -> Iterator[Settings]:
    """Start a broker and a Redis, with the topics of both applications."""
    with bench_services() as settings:
        names = [name for stream in loads.streams for name in peer.OUTPUTS[stream]]
        create_topics(settings.kafka.access, dict.fromkeys(names, settings.kafka.topic_partitions))
        for load in loads.first():
            send(load, settings)  # creates the other topics
        yield settings


@contextmanager
def _outcomes(settings: Settings, streams: Sequence[str]) -> Iterator[list[peer.Outcome]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(peer.Outcome(settings, stream))) for stream in streams]


def _expected(loads: _Loads, settings: Settings) -> list[peer.Expected]:
    expected = [peer.Expected(stream) for stream in loads.streams]
    for one, load in zip(expected, loads.first(), strict=True):
        one.add(load.samples(settings))
    return expected


def _send(loads: Sequence[Load], settings: Settings, expected: Sequence[peer.Expected]) -> int:
    """Send the loads, and return their number of events."""
    for load, one in zip(loads, expected, strict=True):
        send(load, settings)
        one.add(load.samples(settings))
    return sum(load.events for load in loads)


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


def _await(outcomes: Sequence[peer.Outcome], expected: Sequence[peer.Expected]) -> None:
    for outcome, one in zip(outcomes, expected, strict=True):
        outcome.await_events(one.events)


def _check_peer(outcomes: Sequence[peer.Outcome], expected: Sequence[peer.Expected]) -> None:
    for outcome, one in zip(outcomes, expected, strict=True):
        difference = outcome.difference(one)
        if difference is not None:
            raise LakehouseError(difference)


class _Comparison:
    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        loads: _Loads,
        other: peer.Peer,
        outcomes: Sequence[peer.Outcome],
    ) -> None:
        self._lake = lake
        self._settings = settings
        self._loads = loads
        self._other = other
        self._outcomes = outcomes
        self._expected = _expected(loads, settings)

    def measure(self) -> list[Measured]:
        """Return the resources that both needed in each round. The first round is only a warm-up."""
        found: list[Measured] = []
        for number in range(len(self._loads.sizes)):
            self._other.pause()
            events = _send(self._loads.of_round(number), self._settings, self._expected)
            order = (PIPELINE, KAFKA_STREAMS) if number % 2 else (KAFKA_STREAMS, PIPELINE)
            done = [self._catch_up(who, number, events) for who in order]
            self._check()
            if number:
                found += done
                for one in done:
                    _print(one)
        return found

    def _catch_up(self, who: str, number: int, events: int) -> Measured:
        with sampled(application if who == PIPELINE else lambda: [self._other.process]) as used:
            if who == PIPELINE:
                streams = choose(self._loads.streams, self._settings)
                run(self._lake, streams, LAYERS, self._settings, RunOptions(AVAILABLE_NOW))
            else:
                self._other.resume()
                _await(self._outcomes, self._expected)
                self._other.pause()
        return _measured(who, number, events, used)

    def _check(self) -> None:
        for expected in self._expected:
            name, counted = _GOLD[expected.stream]
            rows = self._lake.read("gold", name).selectExpr(f"sum({' + '.join(counted)}) AS events")
            _check_count(rows.collect()[0].events, expected)
        _check_peer(self._outcomes, self._expected)


if __name__ == "__main__":
    try:
        app()
    except LakehouseError as error:
        raise SystemExit(f"error: {error}") from error
