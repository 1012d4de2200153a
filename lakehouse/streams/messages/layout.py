"""The layout of gold rows' keys and messages, declared once for Spark and plain Python.

    Key      ─ "…", Name, Millis …         environment=prod:metric=cpu:1777896000000
    Message  ─ name: Plain, Millis, Exact, Payload …     {"serviceId":"auth","windowStart":1777896000000}

Calling a key or message returns a Column over a gold row; exports write its value. `of(row)` returns the same
value as a Python object, so readers without Spark can find exported rows and return the same values. `row`
maps columns to values, with timestamps in microseconds since the epoch (UTC). The result is null for a null
value, and for a key with a null part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.streams.messages import json_text
from lakehouse.streams.messages.key_names import escaped, escaped_text

Row = Mapping[str, Any]
GROUP_SEPARATORS = ":{}"
"""Characters that a group's name must not contain if the sink has additional keys for each group."""


class OfColumns(Protocol):
    """A value that is computed from columns of a gold row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns from which the value is computed."""

    def __call__(self) -> Column:
        """Return the value as a Column over a gold row."""

    def of(self, row: Row) -> Any:
        """Return a row's value as a Python object."""


class Value(OfColumns, Protocol):
    """A value in a message."""

    def text(self, row: Row) -> str:
        """Return a row's value as JSON text."""


@dataclass(frozen=True)
class _OfColumn:
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The only column, as a tuple."""
        return (self.column,)


@dataclass(frozen=True)
class Plain(_OfColumn):
    """An unchanged column: a string, an integer, a double or a boolean."""

    def __call__(self) -> Column:
        """Return the column."""
        return F.col(self.column)

    def of(self, row: Row) -> Any:
        """Return the column's value."""
        return row[self.column]

    def text(self, row: Row) -> str:
        """Return the column's value as JSON. NaN and infinities are strings, as Spark writes them."""
        value = row[self.column]
        if isinstance(value, float) and not math.isfinite(value):
            return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Millis(_OfColumn):
    """A timestamp as epoch milliseconds, rounded down."""

    def __call__(self) -> Column:
        """Return the value as a long."""
        return F.unix_millis(self.column)

    def of(self, row: Row) -> int | None:
        """Return a row's timestamp in milliseconds, rounded down from microseconds."""
        micros = row[self.column]
        return None if micros is None else int(micros) // 1000

    def text(self, row: Row) -> str:
        """Return the value as a JSON number."""
        return json.dumps(self.of(row))


@dataclass(frozen=True)
class MillisThen:
    """A number that orders rows by the timestamp `column`, in ms, then by the column `then` modulo 1000."""

    column: str
    then: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the two columns: `column` and `then`."""
        return (self.column, self.then)

    def __call__(self) -> Column:
        """Return the number as a long."""
        return F.unix_millis(self.column) * 1000 + F.pmod(F.col(self.then), F.lit(1000))

    def of(self, row: Row) -> int | None:
        """Return a row's number. The row's timestamps are in microseconds."""
        micros, then = row[self.column], row[self.then]
        return None if micros is None or then is None else int(micros) // 1000 * 1000 + int(then) % 1000


@dataclass(frozen=True)
class Exact(_OfColumn):
    """A decimal, written as the shortest JSON number with the same value."""

    def __call__(self) -> Column:
        """Return the value as a variant, which to_json writes exactly."""
        return F.col(self.column).cast("variant")

    def of(self, row: Row) -> Decimal | None:
        """Return the decimal."""
        value: Decimal | None = row[self.column]
        return value

    def text(self, row: Row) -> str:
        """Return the value as a JSON number without an exponent or trailing zeros."""
        value = self.of(row)
        if value is None:
            return "null"
        digits = f"{value:f}"
        return (digits.rstrip("0").rstrip(".") if "." in digits else digits) or "0"


@dataclass(frozen=True)
class Payload(_OfColumn):
    """Any JSON value, stored as in `lakehouse.streams.messages.json_text`."""

    def __call__(self) -> Column:
        """Return the value as a variant, which to_json writes unchanged."""
        return json_text.to_variant(F.col(self.column))

    def of(self, row: Row) -> str | None:
        """Return the stored text."""
        value: str | None = row[self.column]
        return value

    def text(self, row: Row) -> str:
        """Return the value of the stored text as JSON."""
        kept = self.of(row)
        return "null" if kept is None else json_text.to_json_text(kept)


@dataclass(frozen=True)
class Constant:
    """An integer that is the same for every row."""

    number: int
    columns: tuple[str, ...] = ()

    def __call__(self) -> Column:
        """Return the number as a long."""
        return F.lit(self.number).cast("long")

    def of(self, _row: Row) -> int:
        """Return the number."""
        return self.number


@dataclass(frozen=True)
class Name(_OfColumn):
    """A column as part of a key. The given separators are escaped in it, as in `messages.key_names`."""

    separators: str = ":"

    def __call__(self) -> Column:
        """Return the name as a string."""
        return escaped(F.col(self.column), self.separators) if self.separators else F.col(self.column)

    def of(self, row: Row) -> str | None:
        """Return a row's escaped name as a Python string."""
        value = row[self.column]
        if value is None or not self.separators:
            return None if value is None else str(value)
        return escaped_text(str(value), self.separators)


@dataclass(frozen=True)
class Key:
    """Several parts joined into one string. A `str` is used literally."""

    parts: tuple[str | OfColumns, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns from which the key is computed, in the order of its parts."""
        names = (name for part in self.parts if not isinstance(part, str) for name in part.columns)
        return tuple(dict.fromkeys(names))

    def __call__(self) -> Column:
        """Return the key as a string, or null if any part is null."""
        columns = [F.lit(part) if isinstance(part, str) else part().cast("string") for part in self.parts]
        return columns[0] if len(columns) == 1 else F.concat(*columns)

    def of(self, row: Row) -> str | None:
        """Return a row's key as a Python string, or None if any part is None."""
        values = [part if isinstance(part, str) else part.of(row) for part in self.parts]
        return None if None in values else "".join(map(str, values))

    def __add__(self, other: Key) -> Key:
        """Return this key followed by the other key."""
        return Key((*self.parts, *other.parts))


def key(*parts: str | OfColumns) -> Key:
    """Return a key made of these parts. A `str` is used literally."""
    return Key(parts)


def joined_key(*columns: str | OfColumns, separator: str = ":") -> Key:
    """Return a key of several columns, different for each combination of values. A `str` names a column."""
    parts: list[str | OfColumns] = []
    for column in columns:
        parts += [separator, Name(column, separator) if isinstance(column, str) else column]
    return Key(tuple(parts[1:]))


@dataclass(frozen=True)
class Message:
    """A row's message: its values, keyed by JSON name, in this order."""

    values: Mapping[str, Value]

    def __call__(self) -> Column:
        """Return the message as a struct."""
        return F.struct(*(value().alias(name) for name, value in self.values.items()))

    def text(self, row: Row) -> str:
        """Return the same JSON as to_json with nulls, except for whitespace and the notation of doubles."""
        pairs = (f"{json.dumps(name)}:{value.text(row)}" for name, value in self.values.items())
        return f"{{{','.join(pairs)}}}"


@dataclass(frozen=True)
class Equals:
    """A condition on a row: the column equals this value."""

    column: str
    value: str | bool

    def __call__(self) -> Column:
        """Return the condition as a Column."""
        return F.col(self.column) == F.lit(self.value)

    def of(self, row: Row) -> bool:
        """Return whether a row meets the condition."""
        return bool(row[self.column] == self.value)
