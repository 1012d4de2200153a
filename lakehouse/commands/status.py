"""`lakehouse status`: what the pipeline does and how far behind it is, whether it runs or not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from lakehouse.application import StreamOption
from lakehouse.commands.formats import Format, FormatOption
from lakehouse.streams import choose, read_settings
from lakehouse.telemetry import LayerLag, Observation, Observer, PartitionLag, StreamState, Word

_REFRESH_S = 1.0
_COLOURS = {
    Word.WELL: "green",
    Word.EMPTY: "dim",
    Word.STALE: "yellow",
    Word.BEHIND: "yellow",
    Word.UNKNOWN: "magenta",
    Word.BLOCKED: "red",
    Word.STALLED: "red",
}

app = typer.Typer(add_completion=False)


@app.command()
def status(
    stream: StreamOption = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and do not stay.")] = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show how each stream is, what waits before each layer, and how fresh and how large its tables are.

    Refreshed each second until Ctrl-C; once with --format json. No job has to run, and none is asked.
    """
    settings, console = read_settings(), Console()
    observer = Observer(choose(stream or []), settings)
    try:
        if format_ is Format.JSON:
            text = json.dumps(observer.observe(datetime.now(UTC)).as_json(), ensure_ascii=False, indent=1)
            typer.echo(text)
        elif once:
            console.print(_drawn(observer.observe(datetime.now(UTC))))
        else:
            _stay(observer, console)
    finally:
        observer.close()


def _stay(observer: Observer, console: Console) -> None:
    try:
        with Live(_drawn(observer.observe(datetime.now(UTC))), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_REFRESH_S)
                live.update(_drawn(observer.observe(datetime.now(UTC))), refresh=True)
    except KeyboardInterrupt:
        return


def _drawn(seen: Observation) -> RenderableType:
    reasons = [reason for reason in (seen.lake_reason, seen.broker_reason) if reason is not None]
    return Group(
        f"{seen.at:%F %T} UTC",
        *(f"[magenta]{escape(reason)}[/]" for reason in reasons),
        _health(seen.streams),
        _lags(seen.streams),
        _tables(seen),
    )


def _health(states: Iterable[StreamState]) -> Table:
    table = _table("stream", "health", "since", "fresh", "dead letters", "gate", "why")
    for state in states:
        health, gate = state.health, state.gate
        table.add_row(
            state.name,
            f"[{_COLOURS[health.word]}]{health.word}[/]",
            "" if health.since is None else f"{health.since:%F %T}",
            _seconds(state.freshness_s),
            _number(state.open_letters),
            "" if gate is None else "open" if gate.is_open else "[red]closed[/]",
            escape(health.reason),
        )
    return table


def _lags(states: Iterable[StreamState]) -> Table:
    table = _table("stream", "layer", "waits for", "records", "seconds", "micro-batch", "done at")
    for state in states:
        queries = {query.name: query for query in state.queries}
        waiting: list[tuple[str, str, str | None, PartitionLag | LayerLag]] = [
            *((f"bronze ({lag.topic} {lag.partition})", "bronze", None, lag) for lag in state.partitions),
            *((f"{lag.query} ({lag.source})", lag.layer, lag.query, lag) for lag in state.layers),
        ]
        for name, layer, query_name, lag in waiting:
            query = None if query_name is None else queries[query_name]
            colour = "" if lag.records == 0 else "yellow"
            table.add_row(
                state.name,
                layer,
                escape(name),
                f"[{colour}]{_number(lag.records)}[/]" if colour else _number(lag.records),
                _seconds(lag.seconds),
                "" if query is None else _number(query.done),
                "" if query is None or query.done_at is None else f"{query.done_at:%F %T}",
            )
    return table


def _tables(seen: Observation) -> Table:
    table = _table("table", "version", "committed", "rows", "files", "bytes", "watermark")
    for state in seen.streams:
        watermarks = {one.table: f"{one.watermark:%F %T}" for one in state.event_times}
        for one in state.tables:
            table.add_row(
                one.name,
                _number(one.version),
                "" if one.committed_at is None else f"{one.committed_at:%F %T}",
                _number(one.rows),
                _number(one.files),
                _number(one.size_bytes),
                watermarks.get(one.name, ""),
            )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        is_number = heading in {"records", "seconds", "rows", "files", "bytes", "version", "fresh"}
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    return table


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:,.1f} s"
