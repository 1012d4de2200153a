"""`lakehouse demo`: the four streams, end to end on embedded services."""

from __future__ import annotations

import typer
from rich.console import Console

from lakehouse.demo import EVENTS
from lakehouse.demo import demo as run_demo
from lakehouse.streams import read_settings

app = typer.Typer()


@app.command(
    help=f"Send {sum(EVENTS.values()):,} events of four streams through all layers on services of its own, "
    "and show them."
)
def demo() -> None:
    """Run the demo; it stops what it started and can be run again."""
    run_demo(read_settings(), Console())
