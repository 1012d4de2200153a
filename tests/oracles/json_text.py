"""JSON as the pipeline must read it: strictly, with exact digits, and detecting repeated names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from functools import reduce
from typing import Any

EXACT = Context(prec=1000)
"""A precision greater than that of any sum in the tests."""

_PLAIN = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?")
_DECIMAL_DIGITS = 38


@dataclass(frozen=True)
class Number:
    """A JSON number as written."""

    text: str

    @property
    def is_integer(self) -> bool:
        """Whether it is a whole number, such as 270 or 270.0, with no more digits than are read exactly."""
        return self._is_exact and not self.text.partition(".")[2].strip("0")

    @property
    def integer(self) -> int:
        """The number itself, if it is whole."""
        return int(self.text.partition(".")[0])

    @property
    def double(self) -> float:
        """The nearest double, which may be infinite."""
        return float(self.text)

    @property
    def decimal(self) -> Decimal:
        """The exact number; infinite if its exponent is beyond Python's range, unless it is zero."""
        try:
            return Decimal(self.text)
        except InvalidOperation:
            digits = re.split("[eE]", self.text)[0]
            return Decimal("Infinity") if re.search("[1-9]", digits) else Decimal(0)

    @property
    def kept(self) -> Decimal:
        """The value in a payload: that of the double if the number has an exponent or too many digits."""
        return Decimal(self.text if self._is_exact else repr(self.double))

    @property
    def _is_exact(self) -> bool:
        match = _PLAIN.fullmatch(self.text)
        if match is None:
            return False
        whole, fraction = match[1], match[2] or ""
        return len(fraction) <= _DECIMAL_DIGITS and len((whole + fraction).lstrip("0")) <= _DECIMAL_DIGITS


class Pairs(list[tuple[str, Any]]):
    """A JSON object as written, including repeated names."""


def parse(text: str) -> Any:
    """Parse one JSON text, with Number and Pairs for numbers and objects, or raise ValueError."""
    return json.loads(
        text, parse_constant=_refuse, parse_int=Number, parse_float=Number, object_pairs_hook=Pairs
    )


def to_text(value: object) -> str:
    """Return a value from `parse` as compact JSON."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{to_text(name)}:{to_text(item)}" for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def payload_text(value: object) -> str | None:
    """Return the stored form of a field of any JSON type: null, a string unchanged, anything else as JSON.

    A string that is valid JSON keeps its quotes, so that the original can be restored.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        return to_text(value)
    return to_text(value) if _is_json(value) else value


def payload_meaning(text: str | None) -> object:
    """Return the meaning of a stored payload, which is equal for two texts that differ only in spelling."""
    if text is None:
        return None
    return _comparable(parse(text)) if _is_json(text) else ("plain", text)


def exact_sum(values: Iterable[Decimal]) -> Decimal | None:
    """Return the exact sum, or None if it has more than 29 digits before the point."""
    return held(reduce(EXACT.add, values, Decimal(0)))


def held(total: Decimal) -> Decimal | None:
    """Return the total if it fits into decimal(38,9), or None."""
    return total if total.copy_abs() < Decimal("1e29") else None


def beyond_the_parser(value: object) -> bool:
    """Return whether a value contains half a surrogate pair or a repeated name, at any depth."""
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, Pairs):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or _any_beyond(part for pair in value for part in pair)
    return isinstance(value, list) and _any_beyond(value)


def _any_beyond(values: Iterable[object]) -> bool:
    return any(map(beyond_the_parser, values))


def _is_json(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _comparable(value: object) -> object:
    if isinstance(value, Number):
        return value.kept
    if isinstance(value, Pairs):
        return {name: _comparable(item) for name, item in value}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return ("boolean", value) if isinstance(value, bool) else value


def _refuse(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")
