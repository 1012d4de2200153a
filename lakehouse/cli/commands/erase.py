"""`lakehouse erase`: shows which places still have a person's data."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from lakehouse.cli.options import Format, FormatOption
from lakehouse.common.errors import LakehouseError, SettingsError
from lakehouse.common.record_lines import STANDARD_INPUT
from lakehouse.common.terminal import Console, echo_json

if TYPE_CHECKING:
    from lakehouse.operations.erasure.report import Place, Report, Searched

_MOST_ROWS = 100
_MOST_LINES = 5

app = typer.Typer(no_args_is_help=True)


@app.callback()
def erase() -> None:
    """Show which places still have a person's data."""


class Where(StrEnum):
    """A place to search. Sinks of installed packages are searched only together with everything else."""

    LAKE = "lake"
    REDIS = "redis"
    POSTGRES = "postgres"
    KAFKA = "kafka"


@app.command()
def verify(
    subject: Annotated[
        str, typer.Option(metavar="FILE|-", help="File with one id a line, in UTF-8. -: standard input.")
    ],
    place: Annotated[
        list[Where] | None, typer.Option(help="Search only this place; may be repeated. Default: all.")
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Search the lake, its stores and its topics for ids of people, and show where they are and until when.

    Every file of the lake is read: data of all versions, change feeds, logs, checkpoints and checksums. So
    are the export's keys in Redis, its schema in PostgreSQL, and every record in the topics. Nothing is
    written. Ids are never shown: the report names their lines in the file. The exit code is 0 only if nothing
    was found and everything could be read. JSON contains every place.
    """
    from lakehouse.operations.erasure.subjects import subjects_in
    from lakehouse.operations.erasure.verifying import verify as verify_all
    from lakehouse.streams.registry import load, read_settings

    subjects = subjects_in(_read(subject))
    progress = Console(stderr=True)

    def on_searched(done: Searched) -> None:
        progress.print(str(done), soft_wrap=True)

    try:
        settings = read_settings()
        report = verify_all(subjects, settings, load(settings), on_searched, only=place or ())
    except LakehouseError as error:
        raise type(error)(subjects.masked(str(error))) from None
    except Exception as error:  # noqa: BLE001 - a bug: its message could contain an id
        said = subjects.masked(f"{type(error).__name__}: {error}")
        raise RuntimeError(said).with_traceback(error.__traceback__) from None
    if format_ is Format.JSON:
        echo_json(report.as_json())
    else:
        _print(report, Console())
    if not report.is_clean:
        raise typer.Exit(1)


def _read(subject: str) -> bytes:
    """Return the bytes of the file. Its name is not repeated in a message, because it might be an id."""
    if subject == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return Path(subject).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a name"
        raise SettingsError(
            f"--subject: the file cannot be read: {why}. Give a file that contains one id a line, or - for "
            "standard input; an id itself is never an argument"
        ) from None


def _print(report: Report, console: Console) -> None:
    if report.places:
        title = f"places with an id, {report.at:%F %T} UTC"
        columns = ("where", Column("place", overflow="fold"), "kind", Column("in", overflow="fold"), "values")
        table = Table(*columns, "not certain", "lines", Column("until", overflow="fold"), title=title)
        for one in report.places[:_MOST_ROWS]:
            counts = f"{one.certain:,}", f"{one.uncertain:,}" if one.uncertain else ""
            names = ", ".join([*one.parts, *one.examples])
            table.add_row(one.where, one.name, one.kind, names, *counts, _lines(one), str(one.until))
        console.print(table)
        if len(report.places) > _MOST_ROWS:
            console.print(f"{len(report.places) - _MOST_ROWS:,} more; --format json shows all", style="dim")
    for unread in report.unread:
        console.print(
            f"out of reach: {unread.where} {unread.name}: {unread.why}", style="yellow", soft_wrap=True
        )
    for text in report.notes:
        console.print(text, style="dim", soft_wrap=True)
    console.print(report.summary, style="bold" if report.is_clean else "bold red", soft_wrap=True)


def _lines(place: Place) -> str:
    shown = ", ".join(map(str, place.lines[:_MOST_LINES]))
    more = len(place.lines) - _MOST_LINES
    return f"{shown} and {more:,} more" if more > 0 else shown
