"""`lakehouse produce`: send sample events to a stream's topic.

lakehouse produce metrics --events 100000 --malformed 0.01
lakehouse produce metrics --rate 10000 --seconds 60
"""

from __future__ import annotations

import math
import secrets
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from lakehouse import producing
from lakehouse.errors import SettingsError
from lakehouse.samples import metrics as metrics_samples
from lakehouse.samples import paced_times, spread_times
from lakehouse.settings import load_settings
from lakehouse.topics import create_topics, require_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_TOPIC = "metrics-events"
_LINE_S = 5.0
_HOUR_S = 3600.0
_LARGEST_SEED = 2**32

app = typer.Typer(no_args_is_help=True, help="Send sample events to a stream's topic.")


@app.callback()
def _produce() -> None:
    """Send sample events to a stream's topic."""  # keeps `metrics` a sub-command, though it is the only one


@dataclass(frozen=True)
class _Plan:
    """How many events, and how fast: rate is None for as fast as possible."""

    events: int
    rate: float | None


@app.command()
def metrics(
    *,
    events: Annotated[int | None, typer.Option(min=1, help="How many events to send.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Events a second. Default: as fast as possible.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.001, help="With --rate, in place of --events: for how long to send.")
    ] = None,
    malformed: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of events that break the contract, in every way there is."),
    ] = 0.0,
    late: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of events behind their time: three in four within the allowed lateness, the fourth "
            "one to three days beyond it.",
        ),
    ] = 0.0,
    duplicates: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of events that repeat an earlier one byte for byte. A metrics record has no "
            "identity, so both count downstream.",
        ),
    ] = 0.0,
    span: Annotated[
        float,
        typer.Option(
            min=0.001, help="Without --rate: event times are spread over this many seconds before now."
        ),
    ] = 600.0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeats a run in all but its clock. Default: random, and printed."),
    ] = None,
) -> None:
    """Send metrics events: --events N, or --rate R --seconds S, or --events N --rate R.

    Exits with 1 if an event could not be delivered, with 130 when interrupted by Ctrl-C.
    """
    for option, value in (("--rate", rate), ("--seconds", seconds), ("--span", span)):
        if value is not None and not math.isfinite(value):
            raise SettingsError(f"{option} {value} was given; expected a finite number")
    plan = _plan(events, rate, seconds)
    settings = load_settings()
    topic = settings.topic(_TOPIC)
    chosen_seed = secrets.randbelow(_LARGEST_SEED) if seed is None else seed
    if plan.rate is None:
        times = spread_times(plan.events, end_ms=int(time.time() * 1000), span_s=span)
    else:
        times = paced_times(plan.rate)
    samples = metrics_samples.samples(
        plan.events,
        times,
        seed=chosen_seed,
        malformed=malformed,
        late=late,
        duplicates=duplicates,
        allowed_lateness_s=settings.allowed_lateness_s,
        ahead_s=settings.future_tolerance_s + _HOUR_S + (0 if plan.rate else span),
    )
    require_broker(settings.kafka_bootstrap_servers)
    create_topics(settings.kafka_bootstrap_servers, {topic: settings.topic_partitions})

    errors = Console(stderr=True)
    at = f"at {plan.rate:,g}/s" if plan.rate else "as fast as possible"
    errors.print(f"{plan.events:,} events to {topic} {at}, --seed {chosen_seed}", highlight=False)
    with _signals() as received, _progress(errors, plan.events) as on_progress:
        summary = producing.produce(
            settings.kafka_bootstrap_servers,
            topic,
            samples,
            rate=plan.rate,
            total=plan.events,
            on_progress=on_progress,
            stop=lambda: bool(received),
        )
    _print_summary(summary, plan)
    if received:
        raise typer.Exit(128 + received[0])
    if summary.failed:
        raise typer.Exit(1)


def _plan(events: int | None, rate: float | None, seconds: float | None) -> _Plan:
    if events is not None and seconds is None:
        return _Plan(events, rate)
    if events is None and rate is not None and seconds is not None:
        return _Plan(max(1, round(rate * seconds)), rate)
    given = {"--events": events, "--rate": rate, "--seconds": seconds}
    named = " and ".join(name for name, value in given.items() if value is not None) or "none of them"
    raise SettingsError(f"got {named}; expected --events N, or --rate R --seconds S, or --events N --rate R")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the first SIGINT or SIGTERM, for an orderly end; a second one ends the process at once."""
    received: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        restore()

    for number in previous:
        signal.signal(number, remember)
    try:
        yield received
    finally:
        restore()


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[producing.Progress], None]]:
    """Show a bar on a terminal and a line every few seconds elsewhere, from the progress it is given."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:>9,.0f}/s"),
        TimeRemainingColumn(),
    )
    # Refreshed by hand, a few times a second: a thread for it would compete with the sending.
    with Bar(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("", total=total, speed=0.0)

        def show(progress: producing.Progress) -> None:
            speed = progress.sent / progress.elapsed_s
            bar.update(task, completed=progress.sent, speed=speed, refresh=True)

        yield show


def _lines(console: Console) -> Callable[[producing.Progress], None]:
    next_line_s = _LINE_S

    def show(progress: producing.Progress) -> None:
        nonlocal next_line_s
        if progress.elapsed_s >= next_line_s:
            next_line_s += _LINE_S
            console.print(
                f"{progress.elapsed_s:.1f} s: sent {progress.sent:,} of {progress.total or 0:,}, "
                f"acknowledged {progress.acknowledged:,}, failed {progress.failed:,}",
                highlight=False,
            )

    return show


def _print_summary(summary: producing.Summary, plan: _Plan) -> None:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("sent", f"{summary.sent:,}")
    table.add_row("acknowledged", f"{summary.acknowledged:,}")
    table.add_row("failed", f"{summary.failed:,}")
    table.add_row("duration", f"{summary.duration_s:,.2f} s")
    table.add_row("actual rate", f"{summary.actual_rate:,.1f}/s")
    if plan.rate is not None:
        table.add_row("rate error", f"{100 * (summary.actual_rate / plan.rate - 1):+.3f} %")
    for label, prefix in (
        ("malformed", "malformed:"),
        ("late, within the allowed lateness", "late_within"),
        ("late, beyond it", "late_beyond"),
        ("duplicated", "duplicate"),
    ):
        counted = sum(count for kind, count in summary.kinds.items() if kind.startswith(prefix))
        table.add_row(label, f"{counted:,}")
    console = Console()
    console.print(table)
    if summary.first_error is not None:
        console.print(f"first failure: {summary.first_error}", highlight=False, markup=False)
