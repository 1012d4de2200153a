"""`lakehouse audit`: checks that no record is lost or duplicated; jobs/audit.py runs it with spark-submit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from lakehouse.cli.options import Format, FormatOption, StreamOption
from lakehouse.common.errors import TableError
from lakehouse.common.events import Kind, note
from lakehouse.common.readable import parse_moment
from lakehouse.common.terminal import Console, echo_json

if TYPE_CHECKING:
    from lakehouse.operations.audit import Check, Report

app = typer.Typer(add_completion=False)


@app.command("audit")
def audit_command(
    stream: StreamOption = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Compare only records that landed since this time with Kafka, silver and the dead letters: "
            "90s, 1h, 7d, or ISO 8601 with an offset. Gold and the exports are compared completely."
        ),
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Compare every layer with the previous layer, row by row, and the exports with gold.

    The audit can run alongside the streams. It changes no data; it only records an event. The exit code is 1
    if anything differs or could not be compared.
    """
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.engine.runtime.runner import utc_now
    from lakehouse.operations.audit import audit
    from lakehouse.operations.copies.marker import refuse_unfinished
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import choose, read_settings

    settings, console, now = read_settings(), Console(), utc_now()
    moment = None if since is None else parse_moment(since, now)
    streams = choose(stream or [], settings)
    progress = Console(stderr=True)

    def on_check(check: Check) -> None:
        mark = f"{check.differences:,} DIFFER" if check.differences else "INCOMPLETE"
        mark = "ok" if check.is_clean else mark
        progress.print(f"{check.stream} {check.name} {check.subject}: {mark}", soft_wrap=True)

    with recorded(settings.lake, "lakehouse audit"), open_lake(settings, "lakehouse audit") as lake:
        refuse_unfinished(lake)
        report = audit(lake, streams, settings, now, on_check, since=moment)
        if not report.checks:
            raise TableError(
                f"no table of {', '.join(one.name for one in streams)} exists in {lake.root} yet"
            )
        for one in streams:
            note_audit(report, one.name)
    if format_ is Format.JSON:
        echo_json(report.as_json())
    else:
        _print(report, console)
    if not report.is_clean:
        raise typer.Exit(1)


def note_audit(report: Report, stream: str) -> None:
    """If the audit checked this stream, record an event with its findings about the stream."""
    from lakehouse.operations.audit.report import summary_of

    checks = [check for check in report.checks if check.stream == stream]
    if not checks:
        return
    counts = ("name", "subject", "compared", "differences", "not_compared")
    found = [{name: getattr(check, name) for name in counts} for check in checks]
    is_clean = all(check.is_clean for check in checks)
    note(
        Kind.AUDIT,
        f"audit of {stream}: {summary_of(checks)}",
        stream=stream,
        details={"clean": is_clean, "at": report.at.isoformat(), "checks": found},
    )


def _print(report: Report, console: Console) -> None:
    from lakehouse.operations.audit.report import summary_of

    columns = ("stream", "check", Column("of", overflow="fold"), "rows", "differ")
    table = Table(*columns, title=f"audit of {report.at:%F %T} UTC")
    for check in report.checks:
        style = "red" if check.differences else "yellow" if check.not_compared else ""
        table.add_row(
            check.stream,
            check.name,
            check.subject,
            f"{check.compared:,}",
            f"{check.differences:,}",
            style=style,
        )
    console.print(table)
    for check in report.checks:
        for remark in check.notes:
            console.print(f"{check.subject}: {remark}", style="dim", soft_wrap=True)
        for reason in check.not_compared:
            console.print(f"{check.subject}: {reason}", style="yellow", soft_wrap=True)
    for check in report.checks:
        for example in check.examples:
            key = ", ".join(f"{name}={value}" for name, value in example.key.items())
            console.print(f"{check.subject}: {key}: {example.what}", style="red", soft_wrap=True)
        if check.differences > len(check.examples):
            console.print(f"{check.subject}: {check.differences - len(check.examples):,} more", style="red")
    verdict = f"NOT clean: {summary_of(report.checks)}"
    console.print("clean: nothing lost, nothing duplicated" if report.is_clean else verdict, style="bold")
