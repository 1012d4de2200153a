"""Output of `lakehouse produce`: progress, and the final result."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from lakehouse.common.terminal import Console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakehouse.dev.samples.producing import SendingProgress, Summary

_LINE_S = 5.0


@contextmanager
def progress_on(console: Console, total: int) -> Iterator[Callable[[SendingProgress], None]]:
    """Yield a function that shows progress: as a bar on a terminal, elsewhere as a line every few seconds."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:>9,.0f}/s"),
        TimeRemainingColumn(),
    )
    # Refreshed manually, a few times a second: a refresh thread would compete with the sending.
    with Bar(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("", total=total, speed=0.0)

        def show(progress: SendingProgress) -> None:
            speed = progress.sent / progress.elapsed_s
            bar.update(task, completed=progress.sent, speed=speed, refresh=True)

        yield show


def print_summary(summary: Summary, rate: float | None, *, sampled: bool = True) -> None:
    """Print the result of a run as a table; with `sampled`, including zero counts of faults."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("sent", f"{summary.sent:,}")
    table.add_row("acknowledged", f"{summary.acknowledged:,}")
    table.add_row("failed", f"{summary.failed:,}")
    table.add_row("duration", f"{summary.duration_s:,.2f} s")
    table.add_row("actual rate", f"{summary.actual_rate:,.1f}/s")
    if rate is not None:
        table.add_row("rate error", f"{100 * (summary.actual_rate / rate - 1):+.3f} %")
    for label, prefix in (
        ("malformed", "malformed:"),
        ("late, within the allowed lateness", "late_within"),
        ("late, beyond it", "late_beyond"),
        ("duplicated", "duplicate"),
        ("tombstones", "tombstone"),
    ):
        counted = sum(count for kind, count in summary.kinds.items() if kind.startswith(prefix))
        if counted or (sampled and prefix != "tombstone"):
            table.add_row(label, f"{counted:,}")
    console = Console()
    console.print(table)
    if summary.first_error is not None:
        console.print(f"first failure: {summary.first_error}")


def _lines(console: Console) -> Callable[[SendingProgress], None]:
    next_line_s = _LINE_S

    def show(progress: SendingProgress) -> None:
        nonlocal next_line_s
        if progress.elapsed_s >= next_line_s:
            next_line_s += _LINE_S
            console.print(
                f"{progress.elapsed_s:.1f} s: sent {progress.sent:,} of {progress.total or 0:,}, "
                f"acknowledged {progress.acknowledged:,}, failed {progress.failed:,}",
            )

    return show
