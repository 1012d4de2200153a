"""Compare actual rows with literal expected rows, in the columns that the expected rows contain."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from lakehouse.testing.records import moment

Row = Mapping[str, Any]

_RELATIVE = 1e-9


def differences(
    name: str,
    expected: Sequence[Row],
    found: Sequence[Row],
    columns: Sequence[str],
    *,
    in_order: bool = False,
) -> list[str]:
    """Return lines that describe how `found` differs from the expected rows, or no lines if they agree.

    Every row must have a counterpart; with `in_order`, in the same position. Columns that no expected row
    contains are not compared. Raises ValueError for an unknown column.
    """
    named = list(dict.fromkeys(column for row in expected for column in row))
    if unknown := [column for column in named if column not in columns]:
        raise ValueError(f"{name} has no column {', '.join(unknown)}; it has {', '.join(columns)}")
    pairs = _in_order(expected, found) if in_order else _matched(expected, found)
    missing = [row for place, row in enumerate(expected) if place not in pairs]
    others = [row for place, row in enumerate(found) if place not in pairs.values()]
    if not missing and not others:
        return []
    shown = named or list(columns)
    return [
        f"{name}: {len(expected)} rows expected, {len(found)} found"
        + (", compared in order" if in_order and len(expected) == len(found) else ""),
        *(f"  - expected  {_shown(row, list(row))}" for row in missing),
        *(f"  + found     {_shown(row, shown)}" for row in others),
    ]


def is_same(expected: Any, found: Any) -> bool:
    """Return whether a value equals the expected value.

    An object can have more fields than expected. Floats are compared with a relative tolerance of 1e-9. Other
    numbers, and decimals given as text, are compared exactly. In the expected value, times can be written as
    ISO 8601 text, bytes as text, and text as bytes.
    """
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(name in found and is_same(one, found[name]) for name, one in expected.items())
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(expected) == len(found) and all(map(is_same, expected, found))
    if isinstance(found, datetime) and isinstance(expected, (str, datetime)):
        return moment(expected) == found
    if {type(expected), type(found)} == {str, bytes}:
        return _as_bytes(expected) == _as_bytes(found)
    if _is_number(found) and (_is_number(expected) or isinstance(expected, str)):
        return _is_same_number(expected, found)
    return bool(expected == found)


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _is_same_number(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) or (isinstance(found, float) and not isinstance(expected, str)):
        one, other = float(expected), float(found)
        return math.isclose(one, other, rel_tol=_RELATIVE) or (math.isnan(one) and math.isnan(other))
    try:
        return Decimal(expected) == Decimal(found)
    except InvalidOperation:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _in_order(expected: Sequence[Row], found: Sequence[Row]) -> dict[int, int]:
    return {
        place: place
        for place, (one, other) in enumerate(zip(expected, found, strict=False))
        if is_same(one, other)
    }


def _matched(expected: Sequence[Row], found: Sequence[Row]) -> dict[int, int]:
    """Match as many rows as possible. Return a dict from indices of expected rows to those of found rows."""
    fits = [[place for place, row in enumerate(found) if is_same(one, row)] for one in expected]
    taken: dict[int, int] = {}

    def find(one: int, seen: set[int]) -> bool:
        for place in fits[one]:
            if place not in seen:
                seen.add(place)
                if place not in taken or find(taken[place], seen):
                    taken[place] = one
                    return True
        return False

    for one in range(len(expected)):
        find(one, set())
    return {one: place for place, one in taken.items()}


def _shown(row: Row, columns: Sequence[str]) -> str:
    return ", ".join(f"{name}={_text(row[name])}" for name in columns if name in row)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, (Decimal, str)):
        return str(value)
    if isinstance(value, (Mapping, list)):
        return json.dumps(value, ensure_ascii=False, default=_text)
    return repr(value)
