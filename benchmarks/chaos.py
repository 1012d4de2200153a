"""`make chaos`: run the pipeline under load while its processes, services and disk fail, then check it.

    python -m benchmarks.chaos --minutes 15 --seed 1 --rate 50

By default, four processes run all streams, one for each layer. With --way together, a single process runs all
layers. With --way turns, these two ways alternate. With --way cluster, four jobs are submitted to a
standalone cluster. With --mixed, topics have different formats; payments are repeated, corrected and deleted;
and the schema registry, which needs Java 21, also fails. A supervisor restarts each process that ends. Faults
follow a seeded schedule (tests/chaos). At the end, every table, topic and Redis row is compared with the
oracles in tests/oracles. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import pytest
import typer

from benchmarks.bench import console
from lakehouse.common.errors import LakehouseError
from tests.chaos.faults import CLUSTER, DECK, FAULTS, MIXED
from tests.chaos.report import print_report
from tests.chaos.run import WAYS, Plan, run_chaos

app = typer.Typer(add_completion=False)


@app.command()
def chaos(
    *,
    minutes: Annotated[float, typer.Option(min=0, help="Minutes of faults; 0: each fault once.")] = 15,
    seed: Annotated[
        int, typer.Option(help="The same seed repeats the schedule, the poison and the events.")
    ] = 1,
    rate: Annotated[float, typer.Option(min=1, help="Events per second in all streams together.")] = 50,
    fault: Annotated[list[str] | None, typer.Option(help="Only this fault; may be repeated.")] = None,
    way: Annotated[str, typer.Option(help=f"How the layers run: {', '.join(WAYS)}.")] = "layers",
    mixed: Annotated[bool, typer.Option("--mixed", help="Use formats other than JSON, and ids.")] = False,
    home: Annotated[
        Path | None, typer.Option(help="An empty directory, which is kept; default: a temporary one.")
    ] = None,
) -> None:
    """Run the pipeline under faults, let it recover, and compare all results with the oracles."""
    unknown = sorted(set(fault or ()) - FAULTS.keys())
    if unknown:
        raise typer.BadParameter(f"no such fault: {', '.join(unknown)}; known: {', '.join(FAULTS)}")
    chosen = next((one for one in WAYS if one == way), None)
    if chosen is None:
        raise typer.BadParameter(f"no such way: {way}; known: {', '.join(WAYS)}")
    signal.signal(signal.SIGTERM, _leave)
    deck = fault or (*DECK, *(CLUSTER if way == "cluster" else ()), *(MIXED if mixed else ()))
    plan = Plan(seed, rate, seconds=minutes * 60, deck=deck, way=chosen, mixed=mixed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lakehouse-chaos-") as lost:
        outcome = run_chaos(
            home or Path(lost),
            plan,
            lambda text: console.print(f"{time.monotonic() - began:6.1f} s  {text}", markup=False),
        )
    print_report(console, outcome)
    if outcome.differences:
        raise typer.Exit(1)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        app()
    except (LakehouseError, pytest.skip.Exception) as error:
        raise SystemExit(f"error: {error}") from error
