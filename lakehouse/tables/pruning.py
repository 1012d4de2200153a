"""Which files of a table can hold rows between two values, by the statistics that Delta keeps of each file.

Delta answers that question in Spark jobs, which replay the table's log for every version. A merge asks it in
every micro-batch, always of simple bounds, so it is answered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, reduce
from typing import Any, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F

Value = datetime | int | str
T = TypeVar("T", int, datetime)

MOST_SPANS = 50
"""Comparing more of them with files takes longer than it saves."""

_TRUNCATED = timedelta(milliseconds=1)  # Delta cuts the times in its statistics to whole milliseconds


@dataclass(frozen=True)
class Between:
    """Rows whose column lies between two values, both included; null: no bound. Times are UTC."""

    column: str
    first: Value | None
    last: Value | None

    def condition(self) -> Column:
        """Return it as a condition on rows."""
        column, bounds = F.col(self.column), list[Column]()
        if self.first is not None:
            bounds.append(column >= F.lit(self.first))
        if self.last is not None:
            bounds.append(column <= F.lit(self.last))
        return reduce(Column.__and__, bounds, F.lit(True))

    def may_hold(self, bounds: Bounds) -> bool:
        """Tell whether a file with these bounds can have such a row; true if nothing is known."""
        least, greatest = bounds.of(self.column)
        is_below = greatest is not None and self.first is not None and _is_less(greatest, self.first)
        is_above = least is not None and self.last is not None and _is_less(self.last, least)
        return not (is_below or is_above)


@dataclass(frozen=True)
class Near:
    """Rows for which all conditions of one of several groups hold; of no group: no row."""

    groups: tuple[tuple[Between, ...], ...]

    def condition(self) -> Column:
        """Return it as a condition on rows."""
        each = (
            reduce(Column.__and__, (one.condition() for one in group), F.lit(True)) for group in self.groups
        )
        found = list(each)
        return reduce(Column.__or__, found) if found else F.lit(False)

    def may_hold(self, bounds: Bounds) -> bool:
        """Tell whether a file with these bounds can have such a row."""
        return any(all(one.may_hold(bounds) for one in group) for group in self.groups)

    def __or__(self, other: Near) -> Near:
        return Near(self.groups + other.groups)


@dataclass(frozen=True)
class Bounds:
    """The least and greatest values in a file, by column, as Delta notes them; others are unknown."""

    least: Mapping[str, Any]
    greatest: Mapping[str, Any]

    def of(self, column: str) -> tuple[Value | None, Value | None]:
        """Return a column's bounds; null where they are unknown. Every value of the file lies within."""
        least, greatest = _value(self.least.get(column)), _value(self.greatest.get(column))
        if isinstance(greatest, datetime):
            greatest = _next(greatest)
        return least, greatest


def last_ones(files: Mapping[str, Bounds], column: str) -> list[str]:
    """Return those files, by name, that can hold the greatest value of a timestamp column."""
    unknown = [name for name, bounds in files.items() if bounds.of(column)[1] is None]
    known = {
        name: _value(bounds.greatest.get(column)) for name, bounds in files.items() if name not in unknown
    }
    greatest = max(_times(known.values()), default=None)
    return unknown + [name for name, value in known.items() if value == greatest]


def _times(values: Iterable[Value | None]) -> Iterable[datetime]:
    return (value for value in values if isinstance(value, datetime))


def _is_less(one: Value, other: Value) -> bool:
    """Compare two values; of different kinds, neither is less."""
    if isinstance(one, datetime) and isinstance(other, datetime):
        return one < other
    if isinstance(one, int) and isinstance(other, int):
        return one < other
    return isinstance(one, str) and isinstance(other, str) and one < other


def _next(moment: datetime) -> datetime:
    try:
        return moment + _TRUNCATED
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _value(noted: Any) -> Value | None:
    if isinstance(noted, str):
        return _time(noted) or noted
    return noted if isinstance(noted, int) and not isinstance(noted, bool) else None


@lru_cache(maxsize=100_000)
def _time(text: str) -> datetime | None:
    """Return a time as Delta notes it, null for any other text."""
    try:
        found = datetime.fromisoformat(text) if text.endswith("Z") else None
    except ValueError:
        return None
    return found


def merged(spans: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    """Return the fewest spans, in order, that cover the same; adjacent ones become one."""
    found: list[tuple[T, T]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
