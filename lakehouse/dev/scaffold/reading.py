"""Read sample records: keep the JSON objects, and report which other lines are left out, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.common.record_lines import Line

_MOST_LEVELS = 50
_TOO_DEEP = f"nests objects and arrays more than {_MOST_LEVELS} deep"
_MOST_NAMED = 3
_EXPECTED = "Expected a JSON object on each line; docs/tutorial.md shows how to convert a CSV file"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"(-?[0-9]{1,37})\.0+")


@dataclass(frozen=True)
class Sample:
    """A sample record: its line, and its JSON object."""

    line: Line
    value: Mapping[str, Any]


@dataclass(frozen=True)
class LeftOut:
    """A line that is left out of the samples, and the reason.

    `rule` is the dead-letter rule under which every stream refuses it, or None if a stream might accept it.
    """

    line: Line
    why: str
    rule: str | None

    def __str__(self) -> str:
        return f"{self.line.place} {self.why}"


@dataclass(frozen=True)
class Samples:
    """The samples of a topic that are kept, and the lines that are left out. Tombstones are in neither.

    `lines` contains all lines in order, including tombstones.
    """

    kept: Sequence[Sample]
    left_out: Sequence[LeftOut] = ()
    lines: Sequence[Line] = ()

    @property
    def warning(self) -> str | None:
        """A warning that counts the left-out lines and shows the first few, or None if all lines are kept."""
        number, every = len(self.left_out), len(self.kept) + len(self.left_out)
        if not number:
            return None
        are = "is" if number == 1 else "are"
        return f"{number:,} of {every:,} samples {are} left out: {_named(self.left_out)}"


def samples_of(lines: Sequence[Line]) -> Samples:
    """Return the samples in a topic's lines. Raises SettingsError if every line is left out."""
    read = [_sample_of(line, line.record.value) for line in lines if line.record.value is not None]
    if not read:
        raise SettingsError("none of the samples has a value")
    kept = [one for one in read if isinstance(one, Sample)]
    left_out = [one for one in read if isinstance(one, LeftOut)]
    if not kept:
        raise SettingsError(f"every sample is left out: {_named(left_out)}. {_EXPECTED}")
    return Samples(kept, left_out, lines)


def number_in(text: str) -> int | Decimal | None:
    """Return the JSON number that a string consists of, or None for anything else, such as NaN or 007.

    Unlike 5.00, "5.00" is not a whole number: it is a price, or another number with two decimals.
    """
    if not _NUMBER.fullmatch(text):
        return None
    try:
        found: int | Decimal = json.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError):  # beyond Python's limits
        return None
    return found


class _ConstantError(ValueError):
    """The text contains NaN or an infinity, which Python's parser accepts, but which is not JSON."""


def _sample_of(line: Line, value: bytes) -> Sample | LeftOut:
    rule = None
    try:
        found = json.loads(value.decode(), parse_float=_parsed, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        why, rule = f"is not UTF-8: {error.reason} at position {error.start}", "not_utf8"
    except (json.JSONDecodeError, _ConstantError) as error:
        why, rule = f"is not JSON: {error}", "not_json"
    except RecursionError:
        why = _TOO_DEEP
    except (ValueError, ArithmeticError):  # JSON, but beyond Python's limits
        why = "has a number with too many digits or too large an exponent"
    else:
        if isinstance(found, dict | list) and _is_deep(found):
            why = _TOO_DEEP
        elif isinstance(found, dict):
            return Sample(line, found)
        else:
            why, rule = "is not a JSON object", "not_an_object"
    return LeftOut(line, why, rule)


def _named(left_out: Sequence[LeftOut]) -> str:
    more = len(left_out) - _MOST_NAMED
    first = "; ".join(map(str, left_out[:_MOST_NAMED]))
    return f"{first}; and {more:,} more" if more > 0 else first


def _parsed(text: str) -> int | Decimal:
    """Parse a number with a fraction or an exponent. 270.0 is an integer, as in a contract."""
    whole = _WHOLE.fullmatch(text)
    return Decimal(text) if whole is None else int(whole[1])


def _refuse(word: str) -> None:
    raise _ConstantError(f"{word} is not a JSON number")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            one
            for outer in level
            for one in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(one, dict | list)
        ]
    return bool(level)
