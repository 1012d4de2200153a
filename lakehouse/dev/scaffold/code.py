"""Generate code snippets for the files of a new package.

Names and values in samples are untrusted. Any text from samples or from the command line is written to a file
only through `escaped` (in code and docstrings), `comment` or `span` (in Markdown).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any

from lakehouse.common.printable import printable
from lakehouse.dev.scaffold.samples import Seen, shown
from lakehouse.streams.contract import FieldType
from lakehouse.streams.kinds.records import column_of
from lakehouse.streams.messages import json_path

_TAKEN = frozenset(
    {
        "event_time",
        "own_time",
        "topic",
        "partition",
        "offset",
        "kafka_timestamp",
        "ingested_at",
        "admitted",
        "window_start",
        "window_end",
        "count",
        "total",
    }
    | {"ts", "recomputed", "status", "last_event_time", "is_final", "crossing", "sum", "min", "max", "avg"}
    | {"variance", "stddev", "m2", "mean", "p50", "p90", "p95", "p99", "sketch", "partitions", "reached"}
    | {"closed_at", "was_closed", "made_anew", "apart", "call", "touched", "old", "olds", "has_new", "coming"}
    | {"more", "standing", "sales", "crossings", "is_new", "ordered_at", "epoch", "crosses", "notified"}
    | {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}  # system columns of every PostgreSQL table
    | {"place", "last", "new", "notifications", "state", "first", "earliest", "unique_id", "sequence"}
)
"""Column names that the kinds use in their tables and transformations."""
_SHORT = 96
_SHORT_COLUMN, _LONGEST_COLUMN = 22, 40
_BYTE, _SHORT_CODE = 0x100, 0x10000
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escaped(value: str) -> str:
    """Return text on one line, escaped for a Python string in double quotes or triple double quotes.

    Unprintable characters, such as line ends, NUL and direction marks, are escaped.
    """
    return "".join(map(_escape, value))


def text(value: str) -> str:
    """Return text as a Python string literal in double quotes."""
    return f'"{escaped(value)}"'


def comment(value: str) -> str:
    """Return a comment on one line, whose unprintable characters are escaped."""
    return f"# {printable(value)}"


def span(value: str) -> str:
    """Return text as a Markdown code span on one line, in which nothing is interpreted as markup."""
    inside = printable(value)
    fence = "`" * (1 + max(map(len, re.findall("`+", inside)), default=0))
    space = " " if inside.startswith("`") or inside.endswith("`") or not inside.strip(" ") else ""
    return f"{fence}{space}{inside}{space}{fence}"


@dataclass(frozen=True)
class About:
    """A stream's description: a sentence with {} in place of each name, and the untrusted names."""

    sentence: str
    names: tuple[str, ...]

    @property
    def in_docstring(self) -> str:
        """The sentence with its names, escaped for a docstring."""
        return self.sentence.format(*(escaped(shown(name)) for name in self.names))

    @property
    def in_markdown(self) -> str:
        """The sentence with its names, as Markdown."""
        return self.sentence.format(*(span(shown(name)) for name in self.names))


def _escape(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None or character.isprintable():
        return known or character
    code = ord(character)
    if code < _BYTE:
        return rf"\x{code:02x}"
    return rf"\u{code:04x}" if code < _SHORT_CODE else rf"\U{code:08x}"


def literal(value: Any, indent: int = 0) -> str:
    """Return a JSON value or bytes as Python code, with one element per line if one line is too short."""
    if isinstance(value, Mapping):
        parts = [f"{text(name)}: {literal(one, indent + 4)}" for name, one in value.items()]
        return _bracketed("{", parts, "}", indent)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _bracketed("[", [literal(one, indent + 4) for one in value], "]", indent)
    if isinstance(value, str):
        return text(value)
    return str(value) if isinstance(value, Decimal) else repr(value)


def _bracketed(opening: str, parts: Sequence[str], closing: str, indent: int) -> str:
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) + indent <= _SHORT and "\n" not in line:
        return line
    space = " " * (indent + 4)
    return "\n".join([opening, *(f"{space}{part}," for part in parts), f"{' ' * indent}{closing}"])


class Columns:
    """The column names of a table, which are derived from field paths, and numbered if already taken.

    `taken` contains the names that the table itself needs.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._names = {*_TAKEN, *taken}
        self._by_path: dict[str, str] = {}

    def take(self, field: Seen, *makes: str) -> str:
        """Return a field's column name, and reserve the names `makes`, in which {} stands for that name."""
        if field.path not in self._by_path:
            for name in _column_names(field):
                made = {name, *(one.format(name) for one in makes)}
                if self._names.isdisjoint(made):
                    self._names |= made
                    self._by_path[field.path] = name
                    break
        return self._by_path[field.path]


def _column_names(field: Seen) -> Iterator[str]:
    """Yield possible column names, the best first.

    The best name is the whole path or, if this is long, the path without its outermost objects. The next
    names contain more and more of these objects. The last ones end with a number.
    """
    paths = [column_of(json_path.text_of(field.names[outer:])) for outer in range(len(field.names))]
    whole = [name for name in paths if name]
    short = next((at for at, name in enumerate(whole) if len(name) <= _SHORT_COLUMN), len(whole) - 1)
    names = [_fitting_column(name) for name in whole[short::-1]] if whole else [_fitting_column("")]
    yield from names
    yield from (f"{names[-1]}_{number}" for number in count(2))


def _fitting_column(name: str) -> str:
    """Return a column name that begins with a letter, is not too long, and is not used by the kinds."""
    if len(name) > _LONGEST_COLUMN:
        name = name[: _LONGEST_COLUMN + 1].rpartition("_")[0] or name[:_LONGEST_COLUMN]
    return f"record_{name}".rstrip("_") if name in _TAKEN or not name[:1].isalpha() else name


def named(field: Seen, column: str, type_: FieldType) -> str:
    """Return the code that passes a field to a kind that sets its type: just the field's path if possible."""
    is_number = type_ is FieldType.STRING and (field.accepts_numbers or field.type is FieldType.LONG)
    if column == column_of(field.path) and not is_number:
        return text(field.path)
    more = ", accepts_numbers=True" if is_number else ""
    return f"Field({text(field.path)}, {text(column)}, FieldType.{type_.name}{more})"


def declared(field: Seen, column: str) -> str:
    """Return the code that declares a field with its guessed type."""
    more = "" if field.is_required else ", required=False"
    more += ", accepts_numbers=True" if field.accepts_numbers else ""
    return f"Field({text(field.path)}, {text(column)}, FieldType.{field.type.name}{more})"
