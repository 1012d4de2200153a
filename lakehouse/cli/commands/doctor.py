"""`lakehouse doctor`: checks this machine, its settings and services before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from lakehouse.common.terminal import Console, echo_json
from lakehouse.operations.doctor.checks import Finding, examine
from lakehouse.settings import Settings
from lakehouse.sinks import registry
from lakehouse.streams.definition import Stream
from lakehouse.streams.registry import load, read_settings

app = typer.Typer(add_completion=False)

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@app.command()
def doctor(
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object, for an issue or a script.")
    ] = False,
) -> None:
    """Check this machine and the services that lakehouse needs, and say how to fix each problem.

    Compares Java, Python, packages and jars with the pinned versions. Checks Kafka and its ACLs; Redis and
    PostgreSQL, if configured; the lake, disks, clock and open files. Starts no JVM and changes nothing.
    Exits with 1 if a check fails.
    """
    console, found = Console(soft_wrap=True), list[Finding]()
    for finding in examine(_read):
        found.append(finding)
        if not json:
            _show(finding, console)
    failed, doubtful = (sum(one.state == state for one in found) for state in ("fail", "warn"))
    if json:
        echo_json({"failed": failed, "warnings": doubtful, "checks": [one.as_json() for one in found]})
    else:
        console.print(f"{len(found)} checks: {failed} failed, {doubtful} warnings")
    if failed:
        raise typer.Exit(1)


def _read() -> tuple[Settings, Sequence[Stream]]:
    settings = read_settings()
    streams = load(settings)
    for stream in streams:
        registry.require_fit(stream)
    return settings, streams


def _show(finding: Finding, console: Console) -> None:
    console.print(
        Text.assemble((f"{finding.state:<4}", _STYLES[finding.state]), f"  {finding.check}: {finding.found}")
    )
    if finding.todo:
        console.print(Text(f"      -> {finding.todo}"))
