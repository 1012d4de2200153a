"""The results of a run, as tables for a terminal."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING

from rich.table import Table

from tests.chaos.faults import FAULTS, POINTS

if TYPE_CHECKING:
    from rich.console import Console

    from tests.chaos.run import Outcome


def print_report(console: Console, outcome: Outcome) -> None:
    """Print the faults, the counts of records, how fast layers recovered, and the defects."""
    console.print(_faults(outcome))
    console.print(_layers(outcome))
    console.print(_exits(outcome))
    books = outcome.books
    console.print(
        f"{books.sent:,} events sent, {books.poison:,} of them poison; {books.clean:,} clean and "
        f"{books.dead:,} dead letters"
    )
    console.print(
        f"{sum(outcome.faults.values())} faults in {outcome.faults_s:.0f} s; caught up "
        f"{outcome.caught_up_s:.1f} s after the last event"
    )
    for difference in outcome.differences:
        console.print(f"DIFFERENT: {difference}", style="red", markup=False)
    console.print(f"{len(outcome.differences)} differences")


def _faults(outcome: Outcome) -> Table:
    table = Table(title="faults")
    table.add_column("fault")
    table.add_column("times", justify="right")
    table.add_column("missed", justify="right")
    for name in (*FAULTS, *(outcome.misses.keys() - FAULTS.keys())):
        missed = str(outcome.misses[name]) if name in POINTS or outcome.misses[name] else ""
        table.add_row(name, str(outcome.faults[name]), missed)
    return table


def _layers(outcome: Outcome) -> Table:
    table = Table(title="seconds from SIGKILL to the first micro-batch of the new process")
    for heading in ("process", "starts", "measured", "min", "median", "max"):
        table.add_column(heading, justify="left" if heading == "process" else "right")
    for name, starts in outcome.starts.items():
        took = outcome.back_s.get(name, [])
        figures = (min(took), statistics.median(took), max(took)) if took else ()
        times = (f"{figure:.1f}" for figure in figures)
        table.add_row(name, str(starts), str(len(took)), *times)
    return table


def _exits(outcome: Outcome) -> Table:
    table = Table(title="processes that ended by themselves")
    for heading in ("process", "after", "exit code", "times", "last said"):
        table.add_column(heading)
    last = {(one.name, one.condition, one.code): (one.stderr or [""])[-1] for one in outcome.exits}
    times = Counter((one.name, one.condition, one.code) for one in outcome.exits)
    for key, count in sorted(times.items()):
        name, condition, code = key
        table.add_row(name, condition, str(code), str(count), last[key])
    return table
