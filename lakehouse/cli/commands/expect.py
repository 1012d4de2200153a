"""`lakehouse expect`: checks tables against their expectations; jobs/expect.py runs it with spark-submit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from lakehouse.cli.options import Format, FormatOption
from lakehouse.common.errors import LakehouseError, TableError
from lakehouse.common.events import Kind, note
from lakehouse.common.extras import needed
from lakehouse.common.readable import parse_moment
from lakehouse.common.terminal import Console, echo_json
from lakehouse.operations.quality.pages import context_directory, site

if TYPE_CHECKING:
    from lakehouse.operations.quality.report import Finding, TableReport
    from lakehouse.operations.quality.subjects import PinnedTables, Subject
    from lakehouse.settings import Settings
    from lakehouse.storage.tables import Lake

app = typer.Typer(add_completion=False)

_RUNS = 30
_ERROR = 2


@app.command()
def expect(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LAYER|TABLE]...",
            help="The layers or tables to check. Default: every table that has a suite.",
        ),
    ] = None,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only rows whose time column is at or after this time: 90s, 1h or 7d ago, or ISO 8601."
        ),
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="The table version to check; requires exactly one table.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Show the results of the last runs instead of checking.")
    ] = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Check tables against their expectation suites.

    Each table is checked at a single version. The results are written to ops.expectation_results, and to HTML
    pages in the `home` directory. The exit code is 1 if an expectation of severity `fail` is not met, and 2
    if an expectation could not be evaluated.
    """
    from lakehouse.engine.ops_tables.event_table import recorded
    from lakehouse.engine.runtime.runner import utc_now
    from lakehouse.operations.quality import results
    from lakehouse.operations.quality.subjects import PinnedTables, chosen, subjects
    from lakehouse.storage.tables import open_lake
    from lakehouse.streams.registry import load, read_settings

    settings, console = read_settings(), Console()
    now = utc_now()
    moment = None if since is None else parse_moment(since, now)
    every = subjects(load(settings))
    wanted = list(chosen(every, names or []))
    if version is not None and len(wanted) != 1:
        raise TableError("--version requires exactly one table; name that table")
    if history:
        with open_lake(settings, "lakehouse expect") as lake:
            _show_history(lake, wanted, console, format_)
        return
    _checking()  # reports missing packages before Spark starts
    with recorded(settings.lake, "lakehouse expect"), open_lake(settings, "lakehouse expect") as lake:
        versions = {} if version is None else {wanted[0].name: version}
        pinned = PinnedTables(lake, every, settings, now, versions=versions)
        reports = _check(wanted, pinned, settings, moment, asked=bool(names))
        run_id = uuid.uuid4().hex
        results.keep(lake, run_id, now, reports)
        _note(run_id, reports)
    if format_ is Format.JSON:
        echo_json([report.as_json() for report in reports])
    else:
        _print(reports, console)
        console.print(f"pages: {site(settings.home) / 'index.html'}", soft_wrap=True)
    if any(report.has_errors for report in reports):
        raise typer.Exit(_ERROR)
    if any(report.failed for report in reports):
        raise typer.Exit(1)


def _checking() -> ModuleType:
    """Return the module that runs the checks. It is imported on demand, because the import takes seconds."""
    with needed("expect", "lakehouse expect"):
        from lakehouse.operations.quality import checking
    return checking


def _check(
    wanted: Sequence[Subject],
    pinned: PinnedTables,
    settings: Settings,
    since: datetime | None,
    *,
    asked: bool,
) -> list[TableReport]:
    checking = _checking()
    progress = Console(stderr=True)
    context = checking.make_context(str(context_directory(settings.home)))
    reports = []
    for subject in wanted:
        suite = checking.suite_of(subject)
        if suite is None or subject.name not in pinned.versions:
            if asked:
                reason = "has no suite" if suite is None else f"is not in {settings.lake} yet"
                progress.print(f"{subject.name} {reason}", soft_wrap=True)
            continue
        report = checking.check(subject, suite, pinned, context, since=since)
        reports.append(report)
        held = sum(one.success for one in report.findings)
        progress.print(
            f"{report.table} version {report.version}, {report.rows:,} rows: {held} of "
            f"{len(report.findings)} expectations hold, {report.duration_s:.1f} s",
            soft_wrap=True,
        )
    if not reports:
        raise LakehouseError(f"there is nothing to check in {settings.lake} yet")
    checking.write_pages(context, pinned.now)
    return reports


def _note(run_id: str, reports: Sequence[TableReport]) -> None:
    from lakehouse.operations.quality.report import summary

    broken = {
        report.table: [one.expectation for one in report.findings if not one.success] for report in reports
    }
    failed = any(report.failed for report in reports)
    note(
        Kind.EXPECT,
        f"expectations of {len(reports)} table{'s' * (len(reports) != 1)}: {summary(reports)}",
        details={"run_id": run_id, "success": not failed, "broken": broken},
    )


def _print(reports: Sequence[TableReport], console: Console) -> None:
    from lakehouse.operations.quality.report import summary

    table = Table("table", Column("expectation", overflow="fold"), "severity", "", "observed")
    for report in reports:
        for one in report.findings:
            style = "" if one.success else ("red" if one.severity == "fail" else "yellow")
            mark = "ok" if one.success else ("ERROR" if one.error else one.severity.upper())
            table.add_row(
                report.table,
                one.expectation,
                one.severity,
                mark,
                one.observed,
                style=style,
            )
    console.print(table)
    for report in reports:
        for one in report.findings:
            for line in _lines(one):
                console.print(f"{report.table}: {one.expectation}: {line}", style="red", soft_wrap=True)
    console.print(summary(reports), style="bold")


def _lines(finding: Finding) -> list[str]:
    if finding.error:
        return [finding.error]
    if finding.success:
        return []
    lines = [", ".join(f"{name}={value}" for name, value in row.items()) for row in finding.examples]
    more = finding.unexpected - len(lines)
    return [*lines, f"{more:,} more"] if more > 0 else lines


def _show_history(lake: Lake, wanted: Sequence[Subject], console: Console, format_: Format) -> None:
    from lakehouse.operations.quality import results
    from lakehouse.operations.quality.results import trends

    found = results.history(lake, [one.name for one in wanted], runs=_RUNS)
    if not found:
        raise LakehouseError(f"nothing has been checked in {lake.root} yet: run `lakehouse expect`")
    if format_ is Format.JSON:
        lines = [{**vars(run), "checked_at": run.checked_at.isoformat()} for run in found]
        echo_json(lines)
        return
    table = Table("table", "expectation", "held", "runs, newest last")
    for trend in trends(found):
        marks = "".join("·" if run is None else ("✓" if run.success else "✗") for run in trend.runs)
        last = trend.runs[-1]
        style = "red" if last is not None and not last.success else ""
        table.add_row(trend.table, trend.expectation, f"{trend.held} of {trend.checked}", marks, style=style)
    console.print(table)
