"""`lakehouse health`: shows open and closed gates."""

from __future__ import annotations

import typer

from lakehouse.cli.options import Format, FormatOption
from lakehouse.common.terminal import Console, echo_json
from lakehouse.operations.quality.results import gates
from lakehouse.storage.tables import open_lake
from lakehouse.streams.registry import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def health(format_: FormatOption = Format.TABLE) -> None:
    """Show for each stream whether its gate is open, since when, and what closed it.

    Shows the last recorded state of the gates of `lakehouse run all --gate`. Exits with 1 if one is closed.
    """
    settings, console = read_settings(), Console()
    with open_lake(settings, "lakehouse health") as lake:
        states = sorted(gates(lake).values(), key=lambda state: state.stream)
    if format_ is Format.JSON:
        rows = [{**vars(state), "changed_at": state.changed_at.isoformat()} for state in states]
        echo_json({"gates": rows})
    else:
        for state in states:
            what = "open" if state.is_open else f"CLOSED: {'; '.join(state.reasons)}"
            line = f"gate of {state.stream} since {state.changed_at:%F %T} UTC: {what}"
            console.print(line, style="" if state.is_open else "red", soft_wrap=True)
        if not states:
            console.print("no gate has been checked yet (lakehouse run all --gate)")
    if not all(state.is_open for state in states):
        raise typer.Exit(1)
