"""All output and log records pass through this module, which makes them printable.

Any output might contain a record's key, a broker's error or a file name. Therefore no other module may create
a console, echo text or format log records; ruff enforces this (`banned-api` in pyproject.toml).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import rich.console
import typer
from rich.file_proxy import FileProxy
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from lakehouse.common.printable import indented, printable, printable_json

_WIDE = 2_000
"""The width used for pipes and files, where ids and lines must not be truncated."""


class Console(rich.console.Console):
    """A console that prints each string and each `Text` as one line, with unprintable characters escaped.

    Table cells are also escaped. Markup such as [red] is not interpreted: use styles for colour. To print
    several lines, pass several strings or a Group. The width is the terminal's, or COLUMNS; output to a pipe
    or file is not wrapped.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        if "width" not in options and "COLUMNS" not in os.environ and not self.is_terminal:
            self.width = _WIDE

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich Text."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the output segments of a string, table or other renderable."""
        return super().render(_cleaned(renderable) if isinstance(renderable, Text) else renderable, options)


def table_of(headings: Iterable[str], rows: Iterable[Iterable[object]], **options: Any) -> Table:
    """Return a table whose cells wrap instead of being truncated. None becomes an empty cell."""
    table = Table(*(Column(heading, overflow="fold") for heading in headings), **options)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    return table


def warn(text: str) -> None:
    """Print a warning line to standard error, or above the live lines on the terminal, if there are any."""
    if not print_above(text):
        Console(stderr=True).print(text, style="yellow", soft_wrap=True)


def print_above(line: str) -> bool:
    """Print a line to standard error above the terminal's live lines. Return false if there are none.

    Without this function, the line would be overwritten when the live lines are redrawn.
    """
    if not isinstance(sys.stderr, FileProxy):
        return False
    sys.stderr.write(f"{printable(line)}\n")
    return True


def echo(*lines: str, err: bool = False) -> None:
    """Print each text as one line with unprintable characters escaped, regardless of the terminal width."""
    for line in lines:
        typer.echo(printable(line), err=err)


def echo_json(value: Any, *, indent: int | None = 1) -> None:
    """Print a value as JSON, with only the unprintable characters escaped."""
    typer.echo(printable_json(value, indent=indent))


def log_to_standard_error() -> None:
    """Print the log records of the whole process to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)


class LogFormatter(logging.Formatter):
    """A log formatter that indents every line of a record except the first."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a log record, with all lines but the first indented."""
        return "\n".join(indented(super().format(record)))


def guard_standard_error() -> None:
    """Make Python's own output printable: log records without a handler, and uncaught errors in threads."""
    threading.excepthook = _show_failure
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogFormatter())


def _show_failure(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None and not isinstance(failure.exc_value, SystemExit):
        echo(*indented("".join(traceback.format_exception(failure.exc_value))), err=True)


def _cleaned(text: Text) -> Text:
    """Return a rich Text with unprintable characters escaped. Styles keep their positions."""
    if text.plain.isprintable():
        return text
    parts = [printable(character) for character in text.plain]
    begins = list(accumulate(map(len, parts), initial=0))
    clean = Text(
        "".join(parts),
        style=text.style,
        justify=text.justify,
        overflow=text.overflow,
        no_wrap=text.no_wrap,
        end=text.end,
    )
    for one in text.spans:
        clean.stylize(one.style, begins[one.start], begins[one.end])
    return clean
