"""The cost of a round in a live run: a fixed part F, and a part v for each event.

    python -m benchmarks.rounds                             F and v of the four streams
    python -m benchmarks.rounds --without PlainFiles        with and without a class of our jar, alternating
    python -m benchmarks.rounds --amount FEW --amount SOME  the same, alternating between execution modes
    python -m benchmarks.rounds --stream calls --events 500 --events 30000

Rounds are driven one by one in a single thread, so that each step's CPU time can be measured. Each stream
gets its events, then each of its steps runs once. Summaries are merged in every round. F and v are fitted
over several sizes, as F + v * events.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import psutil
import typer
from rich.table import Table

from benchmarks.bench import bench_services, console
from benchmarks.measuring import application
from lakehouse.dev.samples.loads import Load, send
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.layers.step import Permitted, Step
from lakehouse.engine.progress.reading import InMemory
from lakehouse.engine.runtime.loop import utc_now
from lakehouse.engine.runtime.runner import makers_of
from lakehouse.settings import Settings
from lakehouse.storage.spark import execution, internals
from lakehouse.storage.spark.execution import Amount, execute_for
from lakehouse.storage.spark.session import activate
from lakehouse.storage.tables import Lake, looking_once, open_lake
from lakehouse.streams.definition import Stream
from lakehouse.streams.registry import BY_DEFAULT, choose
from tests.support.counting import counted

app = typer.Typer(help=__doc__, add_completion=False)
_CLASSES = {
    "C1 ": "C1",
    "C2 ": "C2",
    "G1": "garbage collector",
    "GC ": "garbage collector",
    "ParGC": "garbage collector",
    "Executor task": "tasks",
    "Thread-": "driver",
    "dag-sched": "scheduler",
    "dispatcher": "scheduler",
    "task-result": "scheduler",
}
"""Classes of the JVM's threads, by the beginnings of their names. Thread-* serve calls from Python."""


@dataclass
class Cost:
    """The JVM's CPU-seconds by class of thread, Python's CPU-seconds, wall time, Spark jobs and JVM calls."""

    threads: Mapping[str, float] = field(default_factory=dict)
    python_s: float = 0.0
    wall_s: float = 0.0
    jobs: int = 0
    calls: int = 0

    @property
    def compilers_s(self) -> float:
        """CPU-seconds of Java's compilers, which depend on the age of the process."""
        return self.threads.get("C1", 0.0) + self.threads.get("C2", 0.0)

    @property
    def cpu_s(self) -> float:
        """CPU-seconds of Python and the JVM, without Java's compilers."""
        return self.python_s + sum(self.threads.values()) - self.compilers_s

    def __add__(self, other: Cost) -> Cost:
        """Return the sum of two costs."""
        names = {**self.threads, **other.threads}
        return Cost(
            {name: self.threads.get(name, 0.0) + other.threads.get(name, 0.0) for name in names},
            self.python_s + other.python_s,
            self.wall_s + other.wall_s,
            self.jobs + other.jobs,
            self.calls + other.calls,
        )


@dataclass(frozen=True)
class Round:
    """The cost of each step in a round, by name."""

    steps: Mapping[str, Cost]

    @property
    def whole(self) -> Cost:
        """The sum over all steps."""
        return reduce(Cost.__add__, self.steps.values(), Cost())


class Rounds:
    """The steps of all streams in one application. As in a live run, each stream has its own session."""

    def __init__(self, lake: Lake, streams: Sequence[Stream], settings: Settings) -> None:
        self._streams = streams
        self._settings = settings
        self._process = application()[1]
        self._seed = 0
        self._lakes = {one.name: replace(lake, spark=lake.spark.newSession()) for one in streams}
        self._makers = {
            one.name: list(makers_of(self._lakes[one.name], one, LAYERS, settings, Permitted()))
            for one in streams
        }
        self._steps = dict[str, Step]()

    def run(self, events: int) -> Round:
        """Send each stream's events, then run each of its steps once."""
        costs = defaultdict[str, Cost](Cost)
        for stream in self._streams:
            self._seed += 1
            send(Load(stream.name, events, span_s=5, seed=self._seed), self._settings)
            self._round(stream, costs)
        return Round(costs)

    def close(self) -> None:
        """Close the connections of all steps."""
        for step in self._steps.values():
            step.close()

    def _round(self, stream: Stream, costs: dict[str, Cost]) -> None:
        spark, handed = self._lakes[stream.name].spark, dict[str, InMemory]()
        activate(spark)
        execute_for(spark, Amount.FEW)
        with ExitStack() as held:
            for maker in self._makers[stream.name]:
                if (step := self._steps.get(maker.name)) is None:
                    step = self._steps[maker.name] = maker.make()
                    step.passes_on = step.layer in {"bronze", "silver"}
                with self._costing(stream, step, costs):
                    with looking_once():
                        batch = step.plan(handed)
                    if batch is None:
                        continue
                    passed = held.enter_context(step.write(batch, utc_now()))
                if passed.rows is not None and step.fills is not None:
                    handed[step.fills] = passed.rows

    @contextmanager
    def _costing(self, stream: Stream, step: Step, costs: dict[str, Cost]) -> Iterator[None]:
        before, python_s, began = _by_thread(self._process), time.process_time(), time.monotonic()
        with counted(self._lakes[stream.name].spark) as counts:
            yield
        wall_s, python_s = time.monotonic() - began, time.process_time() - python_s
        threads = defaultdict[str, float](float)
        for thread, used_s in _by_thread(self._process).items():
            threads[thread[1]] += used_s - before.get(thread, 0.0)
        costs[step.name] += Cost(threads, python_s, wall_s, counts.jobs, counts.calls)


def _by_thread(jvm: psutil.Process) -> dict[tuple[str, str], float]:
    """Return the CPU-seconds of a process's threads, by id and class. Threads that have ended are missing."""
    found = {}
    for task in Path(f"/proc/{jvm.pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            used_ns = int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
        kind = next((kind for begin, kind in _CLASSES.items() if name.startswith(begin)), "others")
        found[task.name, kind] = used_ns / 1e9
    return found


@contextmanager
def _lacking(names: Collection[str]) -> Iterator[None]:
    """Run the block without some classes of our jar."""
    compiled = internals.compiled
    with patch.object(
        internals, "compiled", lambda spark, name: None if name in names else compiled(spark, name)
    ):
        yield


@contextmanager
def _executing_as(amount: Amount) -> Iterator[None]:
    """Run the block in one execution mode, whatever the number of rows."""
    few, some = (sys.maxsize if amount >= one else -1 for one in (Amount.FEW, Amount.SOME))
    with patch.object(execution, "FEW_ROWS", few), patch.object(execution, "SOME_ROWS", some):
        yield


@app.command()
def measure(  # noqa: PLR0917 - typer's options
    stream: Annotated[list[str] | None, typer.Option(help="Streams; by default the four built-in.")] = None,
    events: Annotated[
        list[int] | None, typer.Option(help="Events of each stream per round; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of each size.")] = 6,
    warmup: Annotated[
        int, typer.Option(min=0, help="Warm-up rounds of 2,500 events before the measured ones.")
    ] = 16,
    without: Annotated[
        list[str] | None, typer.Option(help="Run every other round without this class; may be repeated.")
    ] = None,
    amount: Annotated[
        list[str] | None, typer.Option(help="Alternate between these execution modes (FEW, SOME, MANY).")
    ] = None,
) -> None:
    """Print the cost of a round and its steps, for each number of events."""
    sizes = events or [100, 12_500]
    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {"unchanged": nullcontext}
    if without:
        ways[f"without {', '.join(without)}"] = partial(_lacking, without)
    if amount:
        ways = {one: partial(_executing_as, Amount[one]) for one in amount}
    with bench_services() as settings, open_lake(settings, "bench rounds", brief=False) as lake:
        streams = choose(stream or [one.name for one in BY_DEFAULT], settings)
        driven = Rounds(lake, streams, settings)
        try:
            console.print(f"warming up: {warmup} rounds of 2,500 events per stream")
            young = []
            for _, enter in zip(range(warmup), cycle(ways.values()), strict=False):
                with enter():
                    young.append(driven.run(2_500).whole)
            _print_young(young)
            found = defaultdict[tuple[str, int], list[Round]](list)
            for number in range(rounds):
                for size in sizes if number % 2 == 0 else sizes[::-1]:
                    for way, enter in ways.items():
                        with enter():
                            found[way, size].append(driven.run(size))
        finally:
            driven.close()
    for (way, size), ones in found.items():
        console.print(_steps(f"{way}, {size:,} events per stream: means of {len(ones)} rounds", ones))
    console.print(_sums(found, len(streams)))


def _print_young(young: Sequence[Cost]) -> None:
    for first in range(0, len(young), 4):
        some = young[first : first + 4]
        cpu, compilers = (statistics.mean(map(attrgetter(of), some)) for of in ("cpu_s", "compilers_s"))
        console.print(
            f"rounds {first + 1} to {first + len(some)}: {cpu:.2f} CPU-s, compilers {compilers:.2f}"
        )


def _steps(title: str, rounds: Sequence[Round]) -> Table:
    table = Table("step", title=title)
    for heading in ("CPU-s", "driver", "tasks", "Python", "wall s", "jobs", "calls to the JVM"):
        table.add_column(heading, justify="right")
    for name in rounds[0].steps:
        ones = [one.steps[name] for one in rounds]
        table.add_row(name, *_cells(ones))
    table.add_section()
    table.add_row("round", *_cells([one.whole for one in rounds]))
    return table


def _cells(costs: Sequence[Cost]) -> list[str]:
    seconds = (
        [one.cpu_s for one in costs],
        [one.threads.get("driver", 0.0) for one in costs],
        [one.threads.get("tasks", 0.0) for one in costs],
        [one.python_s for one in costs],
        [one.wall_s for one in costs],
    )
    counts = [one.jobs for one in costs], [one.calls for one in costs]
    return [
        *(f"{statistics.mean(ones):.3f}" for ones in seconds),
        *(f"{statistics.mean(ones):,.0f}" for ones in counts),
    ]


def _sums(found: Mapping[tuple[str, int], Sequence[Round]], streams: int) -> Table:
    """Return a table of the rounds by way and size, with F and v for each way."""
    table = Table("", title="a round's CPU-seconds without Java's compilers")
    for heading in ("events", "median", "mean", "standard error", "compilers"):
        table.add_column(heading, justify="right")
    points = defaultdict[str, list[tuple[int, float]]](list)
    for (way, size), rounds in found.items():
        cpu = [one.whole.cpu_s for one in rounds]
        error = statistics.stdev(cpu) / len(cpu) ** 0.5 if len(cpu) > 1 else float("nan")
        figures = statistics.median(cpu), statistics.mean(cpu), error
        compilers = statistics.mean(one.whole.compilers_s for one in rounds)
        table.add_row(way, f"{size * streams:,}", *(f"{one:.2f}" for one in (*figures, compilers)))
        points[way] += [(size * streams, one) for one in cpu]
    table.add_section()
    for way, ones in points.items():
        if len({size for size, _ in ones}) > 1:
            v, f = statistics.linear_regression(*zip(*ones, strict=True))
            table.add_row(f"{way}: F = {f:.2f} CPU-s per round, v = {v * 1e6:.0f} us per event")
    return table


if __name__ == "__main__":
    app()
