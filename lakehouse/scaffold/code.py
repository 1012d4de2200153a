"""Pieces of Python that a new package has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from lakehouse.contract import FieldType
from lakehouse.kinds.records import column_of
from lakehouse.scaffold.samples import Seen

_TAKEN = frozenset(
    {"event_time", "own_time", "topic", "partition", "offset", "window_start", "window_end", "count", "total"}
    | {"ts", "recomputed", "status", "last_event_time", "is_final", "crossing", "sum", "min", "max", "avg"}
    | {"variance", "stddev", "m2", "mean", "p50", "p90", "p95", "p99", "sketch", "partitions", "reached"}
)
_SHORT = 96


def text(value: str) -> str:
    """Return a string as Python writes it, in double quotes."""
    quoted = json.dumps(value, ensure_ascii=False)
    return quoted if value.isprintable() else json.dumps(value)


def literal(value: Any, indent: int = 0) -> str:
    """Return a value of JSON as Python; what does not fit on a line has a line for each of its parts."""
    if isinstance(value, Mapping):
        parts = [f"{text(name)}: {literal(one, indent + 4)}" for name, one in value.items()]
        return _bracketed("{", parts, "}", indent)
    if isinstance(value, Sequence) and not isinstance(value, str):
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


def column(field: Seen) -> str:
    """Return the column of a field: its path in words, unless a table needs that name itself."""
    name = column_of(field.path)
    return f"record_{name}" if name in _TAKEN or not name or not name[0].isalpha() else name


def named(field: Seen, type_: FieldType) -> str:
    """Return a field as an argument of a kind, which gives it this type: its name alone if that says all."""
    is_number = type_ is FieldType.STRING and (field.accepts_numbers or field.type is FieldType.LONG)
    if column(field) == column_of(field.path) and not is_number:
        return text(field.path)
    more = ", accepts_numbers=True" if is_number else ""
    return f"Field({text(field.path)}, {text(column(field))}, FieldType.{type_.name}{more})"


def declared(fields: Sequence[Seen], taken: Sequence[Seen]) -> list[tuple[str, Seen]]:
    """Return fields as they are declared, with guessed types, beside those that are declared already."""
    names = {column(field) for field in taken}
    found = []
    for field in fields:
        name, number = column(field), 2
        while name in names:
            name, number = f"{column(field)}_{number}", number + 1
        names.add(name)
        more = "" if field.is_required else ", required=False"
        more += ", accepts_numbers=True" if field.accepts_numbers else ""
        found.append((f"Field({text(field.path)}, {text(name)}, FieldType.{field.type.name}{more})", field))
    return found
