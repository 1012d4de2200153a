"""What a rate of events needs: cores, memory, partitions, and how old events then are. Arithmetic, no run.

    python -m benchmarks.sizing
    python -m benchmarks.sizing --stream calls --rate 50000 --utilisation 0.4
    python -m benchmarks.sizing --rate 2500 --measured 2500:2.1:2.9

It computes from what has been measured on two cores (the constants below, with their commands), and says what
it assumes. The ages are those of a queue (`benchmarks.queueing`); next to them stands what was measured where
something was. docs/sizing.md says how to read it.
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

# Measured; docs/benchmarks.md has the commands. CPU-seconds per million events, catching up with 3 million.
CPU_S = {"metrics": 21.2, "calls": 115.0, "sales": 30.0, "transactions": 23.0}
# Of the sample events: how many gold rows an event changes, and how many there are to change. A call is a row
# of its own; there are 20 services with 5 metrics, 24 products and 1,000 users.
CHANGED = {"metrics": (1.0, 115), "calls": (0.345, inf), "sales": (1.0, 48), "transactions": (1.0, 1000)}
# Metrics live at 10,000/s, warm: a round with 17,500 rows takes 1.8 s, of which 1.1 s without a row.
FIXED_S = 1.1
ONE_TASK_ROW_US = 38.0
# metrics_summary_10m is merged and sent at most every 10 s (`merge_every_s`), in the round that comes then.
WAITING_S = {"metrics": (0.64, 10.0)}
# A round with one checkpoint in each of bronze, silver and gold took 1.7 s longer, when they were inside it.
CHECKPOINTS = 3
CHECKPOINT_S = 0.55
# A layer handles up to so many rows in one task (lakehouse/storage/spark/execution.py).
ONE_TASK_ROWS = 20_000
# Metrics, a backlog of 3 million: 77,432 events/s on two cores.
ROW_US = 25.8
# Kafka's and Redis' clients in the driver, for each changed row.
EXPORT_US = 45.0
# Peak memory of that backlog, in micro-batches of a million, minus that of the live run, by the rows between.
ROW_BYTES = 1700
# Ages of metrics in the topic out, live on two cores after a warm-up of 320 s: p50 and p99.
MEASURED = ("4000:2.18:4.58", "10000:2.59:4.28")
# Chosen, not measured: half of the cores' time is room for catching up.
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
    """What the arithmetic starts from: seconds and bytes of one stream, and how full cores may be."""

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
        """Return what a round takes on so many cores of executors."""
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
    """Rounds that keep up: rows and seconds of one on average, ages of events in seconds, and what they need.

    `export` is the share of a round in which the driver sends changed rows, `heap_gib` that of an executor.
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
    """What a rate needs: executors, their cores, and partitions of each topic.

    `limit` is the rate in events per second that no number of cores exceeds.
    """

    rate: float
    executors: int
    cores: int
    partitions: int
    limit: float
    rounds: Rounds | None
    """Null if rounds fall behind."""


def size(inputs: Inputs, rate: float) -> Size:
    """Return what a rate in events per second needs on a cluster with one driver for the stream."""
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
        # A gibibyte for Spark, and twice the rows of a round: after a pause, rounds are longer.
        1 + ceil(2 * rows * inputs.row_bytes / executors / _GIB),
        max(_MAX_RECORDS, ceil(2 * rows / _MAX_RECORDS) * _MAX_RECORDS),
    )


def ages_on_two_cores(inputs: Inputs, rate: float) -> tuple[float, float]:
    """Return p50 and p99 of the simulation where the measured points were taken: on a laptop's two cores."""
    rounds = steady(simulate(inputs.cost(_LAPTOP_CORES), rate, trigger_s=inputs.trigger_s))
    return percentile_s(rounds, 0.5), percentile_s(rounds, 0.99)


def parse_measured(text: str) -> tuple[float, float, float]:
    """Return rate, p50 and p99 of "RATE:P50:P99"; raises typer.BadParameter if it is something else."""
    try:
        rate, p50, p99 = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise typer.BadParameter(f'"{text}" is not RATE:P50:P99, such as {MEASURED[0]}') from error
    return rate, p50, p99


def stream_inputs(stream: str, cpu_s_per_million: float | None = None) -> Inputs:
    """Return what was measured of a stream; with other CPU-seconds per million events, rows scale with them.

    A row of another stream takes as much longer as it takes more CPU: only metrics were timed live.
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
    stream: Annotated[str, typer.Option(help=f"Whose costs: {', '.join(CPU_S)}.")] = "metrics",
    rate: Annotated[
        list[int] | None, typer.Option(min=1, help="Events/s; may be given again. [default: 10k, 100k, 1M]")
    ] = None,
    cpu_s_per_million: Annotated[
        float | None, typer.Option(min=0.1, help="CPU-seconds per million events, catching up.")
    ] = None,
    utilisation: Annotated[
        float, typer.Option(min=0.05, max=1, help="How busy cores of executors may be.")
    ] = UTILISATION,
    executor_cores: Annotated[int, typer.Option(min=1, help="Cores of an executor.")] = EXECUTOR_CORES,
    fixed_s: Annotated[float, typer.Option(min=0.01, help="Seconds of a round without rows.")] = FIXED_S,
    keys: Annotated[float | None, typer.Option(min=1, help="Gold rows that a round changes at most.")] = None,
    row_bytes: Annotated[int, typer.Option(min=1, help="Memory for a row of a round.")] = ROW_BYTES,
    trigger_s: Annotated[float, typer.Option(min=0, help="The trigger's interval.")] = TRIGGER_S,
    measured: Annotated[
        list[str] | None, typer.Option(help="RATE:P50:P99 of a live run on two cores; may be given again.")
    ] = None,
) -> None:
    """Print what rates of events need, and how old events become."""
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
    table = Table(title="simulated on two cores, beside what was measured", box=SIMPLE)
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
        f"row of its own, one driver ends at {1 / inputs.export_s:,.0f} events/s."
    )


if __name__ == "__main__":
    app()
