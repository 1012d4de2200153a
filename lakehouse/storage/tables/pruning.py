"""Use Delta's file statistics to select the files that might contain rows between two values.

Delta selects files in Spark jobs, which replay the table's log for every version. A merge must select files
in every micro-batch, always with simple bounds, so this module selects them without Spark jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, reduce
from typing import Any, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.storage.tables.specs import TRUNCATED, shifted

Value = datetime | int | str
T = TypeVar("T", int, datetime)

MOST_SPANS = 50
"""The maximum number of spans. Comparing files with more spans would take more time than it saves."""


@dataclass(frozen=True)
class Between:
    """A condition: the column is between two values, both inclusive. None means no bound. Times are UTC."""

    column: str
    first: Value | None
    last: Value | None

    def condition(self) -> Column:
        """Return the equivalent condition on rows."""
        column, bounds = F.col(self.column), list[Column]()
        if self.first is not None:
            bounds.append(column >= F.lit(self.first))
        if self.last is not None:
            bounds.append(column <= F.lit(self.last))
        return reduce(Column.__and__, bounds, F.lit(True))

    def may_hold(self, bounds: Bounds) -> bool:
        """Return whether a file with these bounds can contain such a row; true for unknown bounds."""
        least, greatest = bounds.of(self.column)
        is_below = greatest is not None and self.first is not None and _is_less(greatest, self.first)
        is_above = least is not None and self.last is not None and _is_less(self.last, least)
        return not (is_below or is_above)


@dataclass(frozen=True)
class Near:
    """A condition: all conditions of at least one group are true. Without groups, no row matches."""

    groups: tuple[tuple[Between, ...], ...]

    def condition(self) -> Column:
        """Return the equivalent condition on rows."""
        each = (
            reduce(Column.__and__, (one.condition() for one in group), F.lit(True)) for group in self.groups
        )
        found = list(each)
        return reduce(Column.__or__, found) if found else F.lit(False)

    def may_hold(self, bounds: Bounds) -> bool:
        """Return whether a file with these bounds can contain such a row."""
        return any(all(one.may_hold(bounds) for one in group) for group in self.groups)

    def __or__(self, other: Near) -> Near:
        return Near(self.groups + other.groups)


@dataclass(frozen=True)
class Bounds:
    """A file's minima and maxima, keyed by column, as the file's writer recorded them in the log.

    Writers format times differently. A bound that cannot be parsed counts as unknown, as does a missing
    bound.
    """

    least: Mapping[str, Any]
    greatest: Mapping[str, Any]

    def of(self, column: str) -> tuple[Value | None, Value | None]:
        """Return a column's bounds, which include every value in the file. An unknown bound is None."""
        return _reach(self.least.get(column))[0], _reach(self.greatest.get(column))[1]


def in_spans(column: str, spans: Sequence[tuple[datetime | None, datetime | None]]) -> Near:
    """Select rows whose column is in one of the sorted spans or, if there are many, in their full range."""
    lie = spans if len(spans) <= MOST_SPANS else [(spans[0][0], spans[-1][1])]
    return Near(tuple((Between(column, first, last),) for first, last in lie))


def last_ones(files: Mapping[str, Bounds], column: str) -> list[str]:
    """Return the names of the files that might contain the greatest value of a timestamp column."""
    reach = {name: _reach(bounds.greatest.get(column)) for name, bounds in files.items()}
    known = {name: last for name, (_, last) in reach.items() if isinstance(last, datetime)}
    surely = max((first for first, _ in reach.values() if isinstance(first, datetime)), default=None)
    return [name for name in files if name not in known or surely is None or known[name] > surely]


def _is_less(one: Value, other: Value) -> bool:
    """Return whether the first value is less than the other, or false for values of different kinds."""
    if isinstance(one, datetime) and isinstance(other, datetime):
        return one < other
    if isinstance(one, int) and isinstance(other, int):
        return one < other
    return isinstance(one, str) and isinstance(other, str) and one < other


def _reach(noted: Any) -> tuple[Value | None, Value | None]:
    """Return the least and greatest value that a bound could represent; both None if it cannot be parsed."""
    if isinstance(noted, str):
        return _reach_of_text(noted)
    return (noted, noted) if isinstance(noted, int) and not isinstance(noted, bool) else (None, None)


@lru_cache(maxsize=100_000)
def _reach_of_text(text: str) -> tuple[Value, Value]:
    """Return the values that text could represent: a time's range if it has an offset, or the text itself."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text, text
    if moment.tzinfo is None:
        return text, text
    return moment, shifted(moment, TRUNCATED)


def merged(spans: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    """Merge overlapping spans, and return the resulting spans, sorted."""
    found: list[tuple[T, T]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
