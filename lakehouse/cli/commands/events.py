"""`lakehouse events`: shows the pipeline's event log without Spark."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from lakehouse.cli.options import Format, FormatOption, StreamOption
from lakehouse.common.events import Event, Kind
from lakehouse.common.readable import parse_moment
from lakehouse.common.terminal import Console, echo_json

app = typer.Typer()


@app.command()
def events(
    *,
    since: Annotated[
        str | None, typer.Option(help="Only events since this time: 90s, 1h, 7d, or ISO 8601 with an offset.")
    ] = None,
    kind: Annotated[
        list[Kind] | None, typer.Option(help="Only events of this kind; may be repeated.")
    ] = None,
    stream: StreamOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many of the newest events.")] = 100,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show events such as starts, stops and failures, newest last.

    `lakehouse sql "SELECT * FROM ops.events"` returns the same rows.
    """
    from lakehouse.engine.ops_tables.event_table import newest
    from lakehouse.streams.registry import choose, read_settings

    settings = read_settings()
    found = newest(
        settings.lake,
        limit=limit,
        since=None if since is None else parse_moment(since, datetime.now(UTC)),
        kinds=kind or (),
        streams=[one.name for one in choose(stream, settings)] if stream else (),
    )
    if format_ is Format.JSON:
        echo_json([_plain(event) for event in found])
    else:
        _print(found, Console())


def _plain(event: Event) -> dict[str, Any]:
    """Return an event as JSON values. `details` is decoded, but remains text if it is not JSON."""
    try:
        details = None if event.details is None else json.loads(event.details)
    except ValueError:
        details = event.details
    at = event.at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return asdict(event) | {"at": at, "details": details}


def _print(found: list[Event], console: Console) -> None:
    table = Table("at (UTC)", "kind", "stream", Column("what", overflow="fold"), "who")
    for event in found:
        style = "red" if event.kind in {Kind.FAILURE, Kind.REFUSAL, Kind.EVENTS_LOST} else ""
        table.add_row(
            f"{event.at:%F %T}",
            event.kind,
            event.stream or "",
            event.message,
            f"{event.actor} ({event.host}, {event.pid})",
            style=style,
        )
    console.print(table if found else "no events")
