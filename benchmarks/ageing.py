"""The cost of a micro-batch on tables with many days of data, compared with the cost on young tables.

    python -m benchmarks.ageing
    python -m benchmarks.ageing --days 10 --days 90 --late 0.01 --json ageing.json --plot ageing.png

Each age has its own lake, for which `benchmarks.aged` creates rows and long logs. In each round, the lakes
take turns: each gets the same events and catches up in several micro-batches. Each lake does so once with all
layers together, and once layer by layer. The cost of a step's micro-batch is the CPU and wall time between
the end of the previous micro-batch and its own end. The cost of a start is the time until every query has
finished its first micro-batch. Ratios compare a lake with the young lake in the same round.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.table import Table

from benchmarks import aged
from benchmarks.applications import environment
from benchmarks.bench import bench_services, console
from benchmarks.fixed import timed
from benchmarks.measuring import application, cpu_seconds
from lakehouse.dev.samples.loads import Load, send
from lakehouse.engine.layers import LAYERS, LayerName
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run, utc_now
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.maintenance.upkeep import Keeper, tasks
from lakehouse.settings import Settings, load_settings
from lakehouse.storage.tables import Lake, open_lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.registry import BY_DEFAULT, choose

_LATE_SPAN_S = 6.9 * 24 * 3600
_SPAN_S = 120.0
_BATCHES = 3
_WIDTH = 140

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Aged:
    """A lake with this many days of data. A young lake has 0 days."""

    days: int
    lake: Lake
    settings: Settings


@dataclass
class Clock:
    """CPU-seconds of the application and wall time, recorded with the query's name after each micro-batch."""

    marks: list[tuple[str, float, float]] = field(default_factory=list)

    def mark(self, done: BatchDone | None = None) -> None:
        """Record the current CPU and wall time."""
        cpu_s = sum(map(cpu_seconds, application()))
        self.marks.append(("" if done is None else done.query, cpu_s, time.monotonic()))


@dataclass(frozen=True)
class Plan:
    """The events for every lake in a round. `late` is the share of events up to seven days late."""

    streams: Sequence[Stream]
    events: int
    late: float
    by_layer: bool
    jobs: bool


@dataclass(frozen=True)
class Cost:
    """CPU-seconds and wall seconds of a step, in one round, on the lake with this age."""

    step: str
    days: int
    round: int
    cpu_s: float
    wall_s: float


@app.command()
def ageing(
    *,
    days: Annotated[
        list[int] | None, typer.Option(min=1, help="Ages in days; by default 10, 30 and 90.")
    ] = None,
    stream: Annotated[list[str] | None, typer.Option(help="Streams; by default all.")] = None,
    events: Annotated[int, typer.Option(min=100, help="Events of each stream in a round.")] = 3_000,
    late: Annotated[float, typer.Option(min=0, max=1, help="Share of events up to seven days late.")] = 0.0,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Warm-up rounds before the measured ones.")] = 3,
    by_layer: Annotated[bool, typer.Option(help="Also measure layer by layer.")] = True,
    jobs: Annotated[
        bool, typer.Option(help="Also measure each layer as a process, from start to end.")
    ] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the curve to this PNG.")] = None,
) -> None:
    """Measure micro-batches and starts in all layers, on lakes with different ages that take turns."""
    streams = choose(stream or [], load_settings())
    plan, ages = Plan(streams, events, late, by_layer, jobs), [0, *sorted(days or [10, 30, 90])]
    found: list[Cost] = []
    with _lakes(ages, plan) as lakes, suppress(KeyboardInterrupt):  # the measurements so far are still shown
        for number in range(warmup + rounds):
            for one in lakes if number % 2 else lakes[::-1]:
                found += [cost for cost in _measure(one, plan, number) if number >= warmup]
            console.print(f"round {number + 1} of {warmup + rounds}")
    _show(found, ages, f"{events:,} events of each stream in each of {rounds} rounds")
    if json_ is not None:
        json_.write_text(json.dumps([asdict(one) for one in found], indent=1))
    _draw(plot, found, ages)


@contextmanager
def _lakes(ages: Sequence[int], plan: Plan) -> Iterator[list[Aged]]:
    streams = plan.streams
    with bench_services() as settings, open_lake(settings, "bench ageing", brief=False) as first:
        found = [_lake_of(first, settings, days, place) for place, days in enumerate(ages)]
        for one in found:
            for stream in streams:
                send(Load(stream.name, plan.events, span_s=_SPAN_S), one.settings)
            run(one.lake, streams, LAYERS, one.settings, RunOptions(AVAILABLE_NOW))
            began, keeper = time.monotonic(), Keeper(one.lake, one.settings)
            if one.days:
                aged.add_rows(one.lake, streams, days=one.days, until=_last_hour())
            for task in tasks(streams, one.settings):
                keeper.keep(task, utc_now())
            if one.days:
                aged.lengthen_logs(one.lake, streams)
            console.print(
                f"a lake of {one.days} days, created and maintained in {time.monotonic() - began:.0f} s"
            )
        yield found


def _last_hour() -> datetime:
    """Return the start of an hour (UTC) before any event that has been sent."""
    return (utc_now() - timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)


def _lake_of(first: Lake, settings: Settings, days: int, place: int) -> Aged:
    """Return the lake for an age, with its own topics and its own Redis database."""
    topics = [topic for stream in BY_DEFAULT for topic in stream.topics]
    base = settings.redis.url.get_secret_value().rpartition("/")[0]
    own = {
        "lake": f"{settings.lake}-{days}",
        "topics": {topic: f"{topic}-{days}" for topic in topics},
        "redis.url": SecretStr(f"{base}/{place}"),
        "run.max_bytes": 1024,  # one file of the previous table, which contains the rows from one micro-batch
    }
    settings = settings.changed(own)
    return Aged(days, Lake(first.spark, settings.lake), settings)


def _measure(one: Aged, plan: Plan, number: int) -> Iterator[Cost]:
    for stream in plan.streams:
        _send(one, stream, plan.events, 0, number)
        yield from _costs(one, stream, LAYERS, number, plan.events, "together: ")
        if plan.late:
            _send(one, stream, plan.events, round(plan.events * plan.late), number + 1000)
            yield from _costs(one, stream, LAYERS, number, plan.events, f"together, {plan.late:.0%} late: ")
        if plan.by_layer:
            _send(one, stream, plan.events, 0, number + 2000)
            for layer in LAYERS:
                yield from _costs(one, stream, [layer], number, plan.events, "by layer: ")
        if plan.jobs:
            _send(one, stream, plan.events, 0, number + 3000)
            for layer in LAYERS:
                yield _job(one, stream, layer, number)


def _send(one: Aged, stream: Stream, events: int, late: int, seed: int) -> None:
    send(Load(stream.name, events - late, span_s=_SPAN_S, seed=seed), one.settings)
    if late:
        send(Load(stream.name, late, span_s=_LATE_SPAN_S, seed=seed), one.settings)


def _costs(  # noqa: PLR0917
    one: Aged, stream: Stream, layers: Sequence[LayerName], number: int, events: int, title: str
) -> Iterator[Cost]:
    """Catch up, and yield the cost of the start and of each query's later micro-batches."""
    clock, settings = Clock(), one.settings.changed({"run.max_records": events // _BATCHES})
    clock.mark()
    options = RunOptions(AVAILABLE_NOW, on_batch=clock.mark)
    run(one.lake, [stream], layers, settings, options)
    queries = [query for query, _, _ in clock.marks]
    first = len(dict.fromkeys(queries)) - 1  # the mark at which every query has finished one micro-batch
    name = stream.name if len(layers) > 1 else f"{layers[0]} of {stream.name}"
    yield _cost(f"start, {title}{name}", one, number, [_passed(clock, 0, first)])
    steps: Mapping[str, list[tuple[float, float]]] = defaultdict(list)
    for place in range(first + 1, len(queries)):
        steps[queries[place]].append(_passed(clock, place - 1, place))
    for query, passed in steps.items():
        yield _cost(title + query, one, number, passed)
    if len(layers) > 1 and steps:
        yield _cost(f"{title}all of {stream.name}", one, number, [_passed(clock, first, len(queries) - 1)])


def _job(one: Aged, stream: Stream, layer: LayerName, number: int) -> Cost:
    """Return the cost of a separate process that runs until the layer has caught up."""
    arguments = ("run", layer, "--stream", stream.name, "--trigger", AVAILABLE_NOW)
    usage = timed(Path(__file__).parents[1], arguments, os.environ | environment(one.settings))
    return Cost(f"process, {layer} of {stream.name}", one.days, number, usage.cpu_s, usage.wall_s)


def _passed(clock: Clock, since: int, until: int) -> tuple[float, float]:
    (_, cpu_s, wall_s), (_, cpu_until_s, wall_until_s) = clock.marks[since], clock.marks[until]
    return cpu_until_s - cpu_s, wall_until_s - wall_s


def _cost(step: str, one: Aged, number: int, passed: Sequence[tuple[float, float]]) -> Cost:
    """Return a step's cost in a round: the mean of its runs."""
    cpu_s, wall_s = (statistics.mean(part) for part in zip(*passed, strict=True))
    return Cost(step, one.days, number, cpu_s, wall_s)


def _show(found: Sequence[Cost], ages: Sequence[int], title: str) -> None:
    table = Table(title=f"{title}: medians, and median ratios to the young lake in the same round")
    table.add_column("step", no_wrap=True)
    for days in ages:
        table.add_column(f"{days} days: CPU-s" if days else "young: CPU-s", justify="right")
        table.add_column("wall s", justify="right")
        if days:
            table.add_column("ratios", justify="right")
    for step, ratios in _ratios(found, ages).items():
        cells = []
        for days in ages:
            of = [cost for cost in found if (cost.step, cost.days) == (step, days)]
            if not of or (days and days not in ratios):
                cells += [""] * (3 if days else 2)
                continue
            cells.append(f"{statistics.median(cost.cpu_s for cost in of):.2f}")
            cells.append(f"{statistics.median(cost.wall_s for cost in of):.2f}")
            if days:
                cells.append("{:.2f}, {:.2f}".format(*ratios[days]))
        table.add_row(step, *cells)
    console.print(table, width=_WIDTH)


def _ratios(found: Sequence[Cost], ages: Sequence[int]) -> dict[str, dict[int, tuple[float, float]]]:
    """Return the median ratios of CPU time and wall time to the young lake, by step and age."""
    by: Mapping[str, dict[tuple[int, int], Cost]] = defaultdict(dict)
    for cost in found:
        by[cost.step][cost.days, cost.round] = cost
    ratios: dict[str, dict[int, tuple[float, float]]] = {}
    for step, costs in by.items():
        ratios[step] = {}
        for days in ages[1:]:
            pairs = [
                (cost, costs[0, number])
                for (of, number), cost in costs.items()
                if of == days and (0, number) in costs
            ]
            if not pairs:
                continue
            ratios[step][days] = (
                statistics.median(old.cpu_s / max(young.cpu_s, 0.01) for old, young in pairs),
                statistics.median(old.wall_s / young.wall_s for old, young in pairs),
            )
    return ratios


def _draw(file: Path | None, found: Sequence[Cost], ages: Sequence[int]) -> None:
    if file is None:
        return
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes a second, which only a plot needs

    ratios = _ratios(found, ages)
    figure = Figure(figsize=(10, 4), layout="constrained")
    for place, (axes, name) in enumerate(
        zip(figure.subplots(1, 2), ("CPU-seconds", "wall time"), strict=True)
    ):
        for step, by_days in ratios.items():
            if "all of" not in step and not step.startswith("start"):
                continue
            style = ":" if step.startswith("start") else "-"
            axes.plot(
                ages, [1.0, *(by_days[days][place] for days in ages[1:])], style, marker=".", label=step
            )
        axes.axhline(1.3, color="black", linewidth=0.5)
        axes.set_xlabel("days in the tables")
        axes.set_title(f"{name} of a micro-batch, young = 1")
        axes.set_ylim(bottom=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="x-small")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    app()
