"""Tables for terminals, with as many columns as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from rich.table import Table
from rich.text import Text

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Column(Generic[_Row]):
    """A column that is shown if the terminal is at least `from_width` characters wide."""

    heading: str
    text: Callable[[_Row], str | Text]
    from_width: int = 0
    is_number: bool = False


def table(columns: Sequence[Column[_Row]], rows: Sequence[_Row], width: int) -> Table:
    """Return a table of the columns that are shown at this width. Numbers are not wrapped."""
    shown = [column for column in columns if width >= column.from_width]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in shown:
        made.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold",
        )
    for row in rows:
        made.add_row(*(column.text(row) for column in shown))
    return made


def number(count: int | None) -> str:
    """Return a number with thousands separators, or "?" if it is unknown."""
    return "?" if count is None else f"{count:,}"


def clock(moment: datetime | None) -> str:
    """Return a time to the second, or an empty string if there is none."""
    return "" if moment is None else f"{moment:%F %T}"
