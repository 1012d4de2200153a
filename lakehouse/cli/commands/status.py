"""`lakehouse status`: shows the pipeline's state and lag, even when no job is running."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from lakehouse.cli.options import Format, FormatOption, StreamOption
from lakehouse.common.terminal import Console, echo_json

if TYPE_CHECKING:
    from lakehouse.operations.alerts.beats import Beats
    from lakehouse.operations.telemetry import Observer

_REFRESH_S = 1.0

app = typer.Typer(add_completion=False)


@app.command()
def status(
    stream: StreamOption = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    steps: Annotated[
        bool,
        typer.Option("--steps", help="Also show each step's backlog, store's state and table's size."),
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="Print once, and exit with status 1 if a stream's gate is closed."),
    ] = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show each stream's health (worst first), the reasons, the running processes and the failing steps.

    The report also says if no process evaluates alerts. A stream's line shows the longest wait among its
    layers.

    On a terminal, the report refreshes every second until Ctrl-C. Elsewhere, and with --format json, the
    report is printed once. The command works even when no job is running. A narrow terminal shows fewer
    columns.
    """
    from lakehouse.cli.reports.status import drawn
    from lakehouse.operations.alerts.beats import Beats
    from lakehouse.operations.telemetry import Observer
    from lakehouse.streams.registry import choose, read_settings

    settings, console = read_settings(), Console()
    observer = Observer(choose(stream or [], settings), settings)
    beats = Beats(settings.kafka.access, settings.alerts.topic)
    try:
        if console.is_terminal and format_ is Format.TABLE and not (once or exit_code):
            _stay(observer, beats, console, with_steps=steps)
            return
        seen = observer.observe(datetime.now(UTC))
    finally:
        observer.close()
    alerts_reason = beats.at(seen).reason
    if format_ is Format.JSON:
        echo_json({**seen.as_json(), "alerts_reason": alerts_reason})
    else:
        console.print(drawn(seen, alerts_reason, console, with_steps=steps))
    if exit_code and any(one.gate is not None and not one.gate.is_open for one in seen.streams):
        raise typer.Exit(1)


def _stay(observer: Observer, beats: Beats, console: Console, *, with_steps: bool) -> None:
    from lakehouse.cli.reports.status import drawn

    def look() -> RenderableType:
        seen = observer.observe(datetime.now(UTC))
        return drawn(seen, beats.at(seen).reason, console, with_steps=with_steps, is_live=True)

    try:
        with Live(look(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_REFRESH_S)
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        return
