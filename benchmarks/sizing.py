"""The cores, memory and partitions that a rate of events needs, and the resulting age of events.

    python -m benchmarks.sizing
    python -m benchmarks.sizing --stream calls --rate 50000 --utilisation 0.4
    python -m benchmarks.sizing --rate 2500 --measured 2500:2.1:2.9

Nothing is run: the figures are computed from measurements on two cores (the constants below), and the output
states the assumptions. The ages come from a simulated queue (`benchmarks.queueing`). Measured ages are
printed next to them where they exist. docs/sizing.md explains how to read the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import fmean
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.queueing import Cost, percentile_s, simulate, steady

# Measured CPU-seconds per million events, catching up with 3 million. The commands are in docs/benchmarks.md.
CPU_S = {"metrics": 21.2, "calls": 115.0, "sales": 30.0, "transactions": 23.0}
# For sample events: the gold rows that an event changes, and the number of rows that can change. A call is a
# separate row. There are 20 services with 5 metrics, 24 products and 1,000 users.
CHANGED = {"metrics": (1.0, 115), "calls": (0.345, inf), "sales": (1.0, 48), "transactions": (1.0, 1000)}
# Live metrics at 10,000/s, warm: a round with 17,500 rows takes 1.8 s, and a round without rows 1.1 s.
FIXED_S = 1.1
ONE_TASK_ROW_US = 38.0
# metrics_summary_10m is merged and sent at most every 10 s (`merge_every_s`), in the round that is then due.
WAITING_S = {"metrics": (0.64, 10.0)}
# A round took 1.7 s longer with a checkpoint each in bronze, silver and gold, when rounds still wrote them.
CHECKPOINTS = 3
CHECKPOINT_S = 0.55
# A layer handles up to this many rows in one task (lakehouse/storage/spark/execution.py).
ONE_TASK_ROWS = 20_000
# A backlog of 3 million metrics: 77,432 events/s on two cores.
ROW_US = 25.8
# The Kafka and Redis clients in the driver, for each changed row.
EXPORT_US = 45.0
# The backlog's peak memory in micro-batches of a million, minus the live run's, divided by the extra rows.
ROW_BYTES = 1700
# The ages of live metrics in the output topic, on two cores and after a warm-up of 320 s: p50 and p99.
MEASURED = ("4000:2.18:4.58", "10000:2.59:4.28")
# Chosen, not measured: half of the cores' time remains for catching up.
UTILISATION = 0.5
EXECUTOR_CORES = 4
TRIGGER_S = 1.0
RATES = (10_000, 100_000, 1_000_000)

_LAPTOP_CORES = 2
_PARTITIONS = 4  # LAKEHOUSE_KAFKA_TOPIC_PARTITIONS
_MAX_RECORDS = 1_000_000  # LAKEHOUSE_RUN_MAX_RECORDS
_GIB = 1 << 30
_ENDLESS = 1 << 40  # cores
_KEYS = (10_000, 1_000_000)

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Inputs:
    """Inputs to the computation: a stream's seconds and bytes, and how busy the cores may be."""

    cpu_s_per_million: float
    fixed_s: float
    one_task_row_s: float
    row_s: float
    export_s: float
    changed_share: float
    keys: float
    waiting_s: float
    waiting_every_s: float
    checkpoints: int
    row_bytes: int
    utilisation: float
    executor_cores: int
    trigger_s: float

    def cost(self, cores: int) -> Cost:
        """Return the cost of a round if the executors have this many cores."""
        return Cost(
            self.fixed_s,
            self.row_s,
            cores,
            one_task_rows=ONE_TASK_ROWS,
            one_task_row_s=self.one_task_row_s,
            changed_share=self.changed_share,
            keys=self.keys,
            export_s=self.export_s,
            waiting_s=self.waiting_s,
            waiting_every_s=self.waiting_every_s,
            checkpoints=self.checkpoints,
            checkpoint_s=CHECKPOINT_S,
        )


@dataclass(frozen=True)
class Rounds:
    """Rounds that keep up: their mean rows and seconds, the ages of events in seconds, and their needs.

    `export` is the share of a round in which the driver sends changed rows. `heap_gib` is the heap of an
    executor.
    """

    rows: float
    seconds: float
    p50_s: float
    p99_s: float
    export: float
    heap_gib: int
    max_records: int


@dataclass(frozen=True)
class Size:
    """The executors, cores per executor, and partitions per topic that a rate needs.

    `limit` is the maximum rate in events per second, however many cores there are.
    """

    rate: float
    executors: int
    cores: int
    partitions: int
    limit: float
    rounds: Rounds | None
    """None if rounds fall behind."""


def size(inputs: Inputs, rate: float) -> Size:
    """Return the needs of a rate, in events per second, on a cluster with one driver for the stream."""
    needed = max(_LAPTOP_CORES, ceil(rate * inputs.cpu_s_per_million / 1e6 / inputs.utilisation))
    executors = ceil(needed / inputs.executor_cores)
    cores = inputs.executor_cores if executors > 1 else needed
    cost, limit = inputs.cost(executors * cores), inputs.cost(_ENDLESS).limit()
    rounds = _rounds(inputs, cost, rate, executors) if rate < cost.limit() else None
    return Size(rate, executors, cores, max(_PARTITIONS, executors * cores), limit, rounds)


def _rounds(inputs: Inputs, cost: Cost, rate: float, executors: int) -> Rounds:
    found = steady(simulate(cost, rate, trigger_s=inputs.trigger_s))
    rows = rate * fmean(one.until_s - one.since_s for one in found)
    seconds = fmean(one.end_s - one.start_s for one in found)
    return Rounds(
        rows,
        seconds,
        percentile_s(found, 0.5),
        percentile_s(found, 0.99),
        cost.changed(rows) * inputs.export_s / seconds,
        # A gibibyte for Spark, and room for twice a round's rows, because rounds after a pause are larger.
        1 + ceil(2 * rows * inputs.row_bytes / executors / _GIB),
        max(_MAX_RECORDS, ceil(2 * rows / _MAX_RECORDS) * _MAX_RECORDS),
    )


def ages_on_two_cores(inputs: Inputs, rate: float) -> tuple[float, float]:
    """Return p50 and p99 from a simulation with two cores, like the laptop on which ages were measured."""
    rounds = steady(simulate(inputs.cost(_LAPTOP_CORES), rate, trigger_s=inputs.trigger_s))
    return percentile_s(rounds, 0.5), percentile_s(rounds, 0.99)


def parse_measured(text: str) -> tuple[float, float, float]:
    """Return the rate, p50 and p99 in "RATE:P50:P99". Raises typer.BadParameter for any other text."""
    try:
        rate, p50, p99 = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise typer.BadParameter(f'"{text}" is not RATE:P50:P99, such as {MEASURED[0]}') from error
    return rate, p50, p99


def stream_inputs(stream: str, cpu_s_per_million: float | None = None) -> Inputs:
    """Return the measurements for a stream. If CPU-seconds per million events are given, row times scale.

    Only metrics were timed live. For other streams, a row's time is scaled by the stream's CPU-seconds.
    """
    cpu_s = cpu_s_per_million or CPU_S[stream]
    scale = cpu_s / CPU_S["metrics"]
    share, keys = CHANGED[stream]
    waiting_s, waiting_every_s = WAITING_S.get(stream, (0.0, inf))
    return Inputs(
        cpu_s_per_million=cpu_s,
        fixed_s=FIXED_S,
        one_task_row_s=ONE_TASK_ROW_US * scale / 1e6,
        row_s=ROW_US * scale / 1e6,
        export_s=EXPORT_US / 1e6,
        changed_share=share,
        keys=keys,
        waiting_s=waiting_s,
        waiting_every_s=waiting_every_s,
        checkpoints=CHECKPOINTS,
        row_bytes=ROW_BYTES,
        utilisation=UTILISATION,
        executor_cores=EXECUTOR_CORES,
        trigger_s=TRIGGER_S,
    )


@app.command()
def sizing(
    *,
    stream: Annotated[str, typer.Option(help=f"Stream: {', '.join(CPU_S)}.")] = "metrics",
    rate: Annotated[
        list[int] | None, typer.Option(min=1, help="Events/s; may be repeated. [default: 10k, 100k, 1M]")
    ] = None,
    cpu_s_per_million: Annotated[
        float | None, typer.Option(min=0.1, help="CPU-seconds per million events, catching up.")
    ] = None,
    utilisation: Annotated[
        float, typer.Option(min=0.05, max=1, help="The share of time in which executor cores may be busy.")
    ] = UTILISATION,
    executor_cores: Annotated[int, typer.Option(min=1, help="Cores per executor.")] = EXECUTOR_CORES,
    fixed_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds that a round without rows takes.")
    ] = FIXED_S,
    keys: Annotated[
        float | None, typer.Option(min=1, help="The maximum number of gold rows that a round changes.")
    ] = None,
    row_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of memory for each row of a round.")
    ] = ROW_BYTES,
    trigger_s: Annotated[float, typer.Option(min=0, help="The trigger's interval.")] = TRIGGER_S,
    measured: Annotated[
        list[str] | None, typer.Option(help="RATE:P50:P99 of a live run on two cores; may be repeated.")
    ] = None,
) -> None:
    """Print what each rate of events needs, and the resulting age of events."""
    if stream not in CPU_S:
        raise typer.BadParameter(f"{stream} is not one of {', '.join(CPU_S)}")
    inputs = stream_inputs(stream, cpu_s_per_million)
    inputs = replace(inputs, utilisation=utilisation, executor_cores=executor_cores, fixed_s=fixed_s)
    inputs = replace(inputs, keys=keys or inputs.keys, row_bytes=row_bytes, trigger_s=trigger_s)
    console = Console()
    console.print(_needs(stream, [size(inputs, one) for one in rate or RATES]))
    points = measured if measured is not None else (MEASURED if stream == "metrics" else ())
    if points:
        console.print(_checked(inputs, [parse_measured(point) for point in points]))
    console.print(_driver(inputs))


def _needs(stream: str, sizes: Sequence[Size]) -> Table:
    table = Table(title=f"{stream}: a driver with 2 cores and 2 GiB of heap, and", box=SIMPLE, padding=0)
    table.add_column("events/s", justify="right", no_wrap=True)
    table.add_column("executors × cores", justify="right", min_width=9)
    for name in ("heap GiB", "topic parts", "max records", "rows", "round s", "p50 s", "p99 s", "sends"):
        table.add_column(name, justify="right", min_width=5)
    for one in sizes:
        cells = [f"{one.rate:,.0f}", f"{one.executors} × {one.cores}"]
        if rounds := one.rounds:
            cells += [f"{rounds.heap_gib}", f"{one.partitions}", f"{rounds.max_records / 1e6:.0f}M"]
            cells += [f"{rounds.rows / 1000:,.0f}k"]
            cells += [f"{value:.1f}" for value in (rounds.seconds, rounds.p50_s, rounds.p99_s)]
            cells += [f"{rounds.export:.0%}"]
        table.add_row(*cells)
    behind = [one for one in sizes if one.rounds is None]
    if behind:
        table.caption = "\n".join(
            f"{one.rate:,.0f}/s falls behind"
            + (f": one driver sends the rows of at most {one.limit:,.0f}/s" if one.rate >= one.limit else "")
            for one in behind
        )
    return table


def _checked(inputs: Inputs, points: Sequence[tuple[float, float, float]]) -> Table:
    table = Table(title="simulated on two cores, next to measured ages", box=SIMPLE)
    for name in ("events/s", "p50", "measured", "p99", "measured"):
        table.add_column(name, justify="right")
    for rate, *found in points:
        cells = [
            (f"{one:.2f} s", f"{measured:.2f} s ({one / measured - 1:+.0%})")
            for one, measured in zip(ages_on_two_cores(inputs, rate), found, strict=True)
        ]
        table.add_row(f"{rate:,.0f}", *(text for cell in cells for text in cell))
    return table


def _driver(inputs: Inputs) -> str:
    rows = " and ".join(
        f"{keys:,} of them make a round {keys * inputs.export_s:.2f} s longer" for keys in _KEYS
    )
    return (
        f"The driver sends changed rows one after the other: {rows}. If every event changes a "
        f"different row, one driver sends at most {1 / inputs.export_s:,.0f} events/s."
    )


if __name__ == "__main__":
    app()
