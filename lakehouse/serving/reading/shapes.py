"""Group dead letters by the shape of their value: the names of its fields, with their JSON types.

Dead letters of the same shape usually have the same cause. A shape contains no values of fields, but the
names of fields come from the record, so they can be data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from lakehouse.streams.messages.layout import Row

MOST_LETTERS = 500
"""The number of dead letters that are grouped: the newest that match."""
MOST_BYTES = 64 * 1024
"""The size of the largest value whose shape is determined."""
_MOST_FIELDS = 40
_MOST_NAME = 60
_NAMES: Mapping[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    float: "number",
    type(None): "null",
}


@dataclass(frozen=True)
class ShapeGroup:
    """The dead letters with values of the same shape.

    shape   the shape, such as {amount: string, id: string}, with fields by name
    count   the number of these dead letters
    rules   how many of them break each rule, largest first
    topics  the topics of their records
    newest  the newest of them
    """

    shape: str
    count: int
    rules: Mapping[str, int]
    topics: Sequence[str]
    newest: Row


def shape_of(value: bytes | None, length: int | None = None) -> str:
    """Return the shape of a value. `length` is its length in bytes, if `value` is only its beginning.

    The shape of an object lists the names and types of its first forty fields, sorted by name, and the number
    of the others. The shape of other JSON is its type. Objects and arrays within an object, and JSON in
    strings, are not opened.
    """
    if value is None:
        return "no value"
    if (length or len(value)) > MOST_BYTES:
        return f"more than {MOST_BYTES // 1024} KiB"
    try:
        found = json.loads(value.decode(), parse_constant=_refuse, parse_int=_number, parse_float=_number)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(found, dict):
        return _NAMES[type(found)]
    fields = [f"{_name(name)}: {_NAMES[type(one)]}" for name, one in sorted(found.items())]
    left = len(fields) - _MOST_FIELDS
    return "{" + ", ".join([*fields[:_MOST_FIELDS], *([f"{left} more"] if left > 0 else [])]) + "}"


def by_shape(letters: Iterable[tuple[str, Row]]) -> list[ShapeGroup]:
    """Group dead letters by shape, largest group first.

    `letters` yields each letter's shape and row, newest first. A row needs `topic`, and `reasons` with their
    `rule`.
    """
    groups = dict[str, list[Row]]()
    for shape, row in letters:
        groups.setdefault(shape, []).append(row)
    found = [_group(shape, rows) for shape, rows in groups.items()]
    return sorted(found, key=lambda one: (-one.count, one.shape))


def as_json(group: ShapeGroup, newest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group as JSON values, with `newest` as its newest dead letter."""
    return {
        "shape": group.shape,
        "count": group.count,
        "rules": dict(group.rules),
        "topics": list(group.topics),
        "newest": dict(newest),
    }


def _group(shape: str, rows: Sequence[Row]) -> ShapeGroup:
    rules = Counter(rule for row in rows for rule in {one["rule"] for one in row["reasons"] or ()})
    ordered = dict(sorted(rules.items(), key=lambda one: (-one[1], one[0])))
    return ShapeGroup(shape, len(rows), ordered, sorted({row["topic"] for row in rows}), rows[0])


def _name(name: str) -> str:
    """Return a field's name, truncated if it is long, and in quotation marks unless it is a plain word."""
    short = name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME - 1]}…"
    return short if short.replace("-", "_").isidentifier() else json.dumps(short, ensure_ascii=False)


def _number(_text: str) -> float:
    """Return the same number for every text, because only the type is needed."""
    return 0.0


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
