"""`lakehouse maintain`: keeps the tables small; jobs/maintain.py is the same for spark-submit."""

from __future__ import annotations

import typer
from rich.console import Console

from lakehouse.application import StreamOption
from lakehouse.events import Kind, note
from lakehouse.repair.maintenance import clear_state
from lakehouse.runtime import event_table
from lakehouse.runtime.event_table import recorded
from lakehouse.streams import choose, read_settings
from lakehouse.tables import open_lake

app = typer.Typer(add_completion=False)


@app.command()
def maintain(stream: StreamOption = None) -> None:
    """Clear columns that only merging needs from gold rows that are too old to be updated.

    No column that users read changes. If ops.events has many small files, they are merged. You can run this
    at any time, beside the layers too; a rerun finds nothing to do.
    """
    settings, streams, console = read_settings(), choose(stream or []), Console()
    with recorded(settings, "lakehouse maintain"), open_lake(settings, "lakehouse maintain") as lake:
        for cleared in clear_state(lake, streams, settings):
            when = (
                "nothing merged yet" if cleared.before is None else f"ended before {cleared.before:%F %T} UTC"
            )
            what = f"{cleared.table}: {cleared.rows:,} rows cleared, {when}"
            note(Kind.MAINTENANCE, what, layer="gold", table=cleared.table, details={"rows": cleared.rows})
            console.print(what, highlight=False)
        if told := event_table.compact(lake.root):
            note(Kind.MAINTENANCE, told, layer="ops", table=event_table.EVENTS.qualified_name)
            console.print(told, highlight=False)
