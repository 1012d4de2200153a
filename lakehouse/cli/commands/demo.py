"""`lakehouse demo`: runs the four built-in streams end to end, on local services that it starts."""

from __future__ import annotations

from typing import Annotated

import typer

from lakehouse.common.terminal import Console
from lakehouse.dev.demo import EVENTS

app = typer.Typer()


@app.command(
    help=f"Start separate local services, send {sum(EVENTS.values()):,} events from four streams through all "
    "layers, and show the results."
)
def demo(
    *,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Afterwards, keep the services, the layers and an API server running until Ctrl-C.",
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --serve: the server's port; 0: any free port.")
    ] = 8080,
) -> None:
    """Run the demo, then stop the services that it started. The demo is safe to repeat."""
    from lakehouse.dev.demo.run import demo as run_demo
    from lakehouse.streams.registry import read_settings

    run_demo(read_settings(), Console(), serve_at=port if serve else None)
