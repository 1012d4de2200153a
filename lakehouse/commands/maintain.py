"""`lakehouse maintain`: what keeps the tables small; jobs/maintain.py is the same by spark-submit."""

from __future__ import annotations

import typer
from rich.console import Console

from lakehouse.application import StreamOption
from lakehouse.maintenance import clear_state
from lakehouse.session import start_session
from lakehouse.streams import choose, read_settings

app = typer.Typer(add_completion=False)


@app.command()
def maintain(stream: StreamOption = None) -> None:
    """Clear what only merging needs from gold rows that are too old to be updated.

    No column that users read changes. May run at any time, beside the layers too; a rerun finds nothing more.
    """
    settings, streams, console = read_settings(), choose(stream or []), Console()
    with start_session(settings, "lakehouse maintain") as spark:
        for cleared in clear_state(spark, streams, settings):
            when = (
                "nothing merged yet" if cleared.before is None else f"ended before {cleared.before:%F %T} UTC"
            )
            console.print(f"{cleared.table}: {cleared.rows:,} rows cleared, {when}", highlight=False)
