"""`lakehouse doctor`: checks this machine, the settings and the services before a run."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from lakehouse.cli.options import Format, FormatOption
from lakehouse.common.terminal import Console, echo, echo_json

if TYPE_CHECKING:
    from lakehouse.operations.doctor.checks import Finding
    from lakehouse.settings import Settings
    from lakehouse.streams.definition import Stream

app = typer.Typer(add_completion=False)

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class Whose(StrEnum):
    """The user whose Kafka ACLs are printed."""

    PIPELINE = "pipeline"
    PRODUCER = "producer"


@app.command()
def doctor(
    *,
    rights: Annotated[
        Whose | None,
        typer.Option(
            help="Instead of checking, print the Kafka ACLs that the pipeline or `lakehouse produce` needs, "
            "as arguments for kafka-acls.sh. No broker is contacted; optional ACLs are marked."
        ),
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option(help="With --rights: only this stream; may be repeated.")
    ] = None,
    user: Annotated[
        str, typer.Option(help="With --rights: the principal's name, without the prefix User:.")
    ] = "lakehouse",
    format_: FormatOption = Format.TABLE,
) -> None:
    """Check this machine and the services that lakehouse needs, and say how to fix each problem.

    Compares Java, Python, packages and jars with the pinned versions. Checks Kafka and its ACLs, the lake,
    disks, the clock and the limit on open files. Also checks Redis and PostgreSQL, if configured.
    Starts no JVM and changes nothing. The exit code is 1 if a check fails.
    """
    from lakehouse.operations.doctor.checks import Finding, examine

    if rights is not None:
        _print_rights(rights, stream or [], user)
        return
    is_json = format_ is Format.JSON
    console, found = Console(soft_wrap=True), list[Finding]()
    for finding in examine(_read):
        found.append(finding)
        if not is_json:
            _show(finding, console)
    failed, doubtful = (sum(one.state == state for one in found) for state in ("fail", "warn"))
    if is_json:
        echo_json({"failed": failed, "warnings": doubtful, "checks": [one.as_json() for one in found]})
    else:
        console.print(f"{len(found)} checks: {failed} failed, {doubtful} warnings")
    if failed:
        raise typer.Exit(1)


def _print_rights(whose: Whose, names: Sequence[str], user: str) -> None:
    from lakehouse.operations.doctor.rights import rights_of_pipeline, rights_of_producer
    from lakehouse.streams.registry import choose, read_settings

    settings = read_settings()
    needed = rights_of_pipeline if whose is Whose.PIPELINE else rights_of_producer
    for right in needed(choose(names, settings), settings):
        mark = "" if right.is_required else "not required: "
        echo(f"{right.as_command(user)}  # {mark}{right.why}")


def _read() -> tuple[Settings, Sequence[Stream]]:
    from lakehouse.sinks import registry
    from lakehouse.streams.registry import load, read_settings

    settings = read_settings()
    streams = load(settings)
    for stream in streams:
        registry.require_fit(stream, settings)
    return settings, streams


def _show(finding: Finding, console: Console) -> None:
    console.print(
        Text.assemble((f"{finding.state:<4}", _STYLES[finding.state]), f"  {finding.check}: {finding.found}")
    )
    if finding.todo:
        console.print(Text(f"      -> {finding.todo}"))
