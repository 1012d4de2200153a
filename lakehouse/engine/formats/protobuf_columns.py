"""Convert Protobuf fields to columns of the contract's types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from operator import attrgetter
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lakehouse.engine.formats.protobuf_json import JsonOf, time_text
from lakehouse.engine.formats.protobuf_kinds import (
    NUMBER,
    UnfitError,
    kind_of,
    micros_of,
    named,
    names_of_enum,
    text_of,
    value_of,
)

Convert = Callable[[Any], Any]
"""Converts a field's value to the contract's type. Raises UnfitError if the value does not fit."""
Take = Callable[[FieldDescriptor], Convert | None]
"""Returns a function that converts a field's values, or None if its type cannot be converted."""
Get = Callable[[Sequence[Any]], tuple[list[Any], dict[int, UnfitError]]]
"""Returns a field's values (None if absent or invalid), and the errors keyed by the message's position."""
_MICROS = 1_000_000
_MOST_DIGITS, _MOST_PLACES, _MOST_LONG = 29, 9, 2**63 - 1
_END_OF_WHOLE = 1e16  # from this value on, a double has an exponent in JSON
_EXACT = Context(prec=_MOST_DIGITS + _MOST_PLACES + 1, rounding=ROUND_HALF_UP)
_OPEN = frozenset({"map", "struct", "value", "any"})


@dataclass(frozen=True)
class Wanted:
    """A contract field, described by plain values; `type` is the name of its FieldType."""

    column: str
    path: tuple[str, ...]
    type: str
    required: bool
    scale: int | None

    @property
    def name(self) -> str:
        """The path as written in the contract."""
        return ".".join(re.sub(r"([.\\])", r"\\\1", name) for name in self.path)


@dataclass(frozen=True)
class Times:
    """The event time: its path, its units per second (for numbers), and the accepted range."""

    path: tuple[str, ...]
    per_second: int
    first_us: int
    last_us: int


@dataclass(frozen=True)
class Taken:
    """Access to a field in messages of one type.

    get      a function that returns the values, or None if the type has no suitable field
    is_there whether the type has, or could have, the field
    is_open  whether the field's existence depends on the record: the path leads into a map, Struct or Any
    """

    get: Get | None
    is_there: bool
    is_open: bool = False


def taken(descriptor: Descriptor, path: tuple[str, ...], take: Take) -> Taken:
    """Return access to the field at a path, even if the field does not exist or has an unsuitable type."""
    steps, here = list[FieldDescriptor](), cast("Descriptor | None", descriptor)
    for name in path:
        found = None if here is None else named(here, name)
        if found is None:
            return Taken(None, is_there=False)
        steps.append(found)
        kind = kind_of(found)
        if kind in _OPEN and len(steps) < len(path):
            return Taken(None, is_there=True, is_open=True)
        here = found.message_type if kind == "object" else None
    convert = take(steps[-1])
    return Taken(None if convert is None else _getter(steps, convert), is_there=True)


def _getter(steps: Sequence[FieldDescriptor], convert: Convert) -> Get:
    """Return a function that gets a field's values from messages."""
    *outer, last = steps
    # Reading an absent field returns its type's zero value; for an enum, this is the enum's first value.
    by_value = not outer and last.message_type is None and last.enum_type is None
    by_value = by_value or not (outer or last.has_presence)

    def within(message: Any) -> Any:
        for step in outer:
            if message is None or (step.has_presence and not message.HasField(step.name)):
                return None
            message = getattr(message, step.name)
        return message

    def found_in(messages: Sequence[Any]) -> list[Any]:
        if not by_value:
            messages = [within(message) for message in messages] if outer else messages
            return [
                None
                if message is None or (last.has_presence and not message.HasField(last.name))
                else getattr(message, last.name)
                for message in messages
            ]
        found = list(map(attrgetter(last.name), messages))
        if not last.has_presence or last.is_repeated:
            return found
        has, name = type(messages[0]).HasField, last.name
        return [
            value if value or has(message, name) else None
            for value, message in zip(found, messages, strict=True)
        ]

    def get(messages: Sequence[Any]) -> tuple[list[Any], dict[int, UnfitError]]:
        found = found_in(messages)
        return (found, {}) if convert is _same else _converted(found, convert)

    return get


def _converted(found: Sequence[Any], convert: Convert) -> tuple[list[Any], dict[int, UnfitError]]:
    try:
        return [None if one is None else convert(one) for one in found], {}
    except UnfitError:
        values, unfit = list[Any](), dict[int, UnfitError]()
    for place, one in enumerate(found):
        try:
            values.append(None if one is None else convert(one))
        except UnfitError as why:
            values.append(None)
            unfit[place] = why
    return values, unfit


def _same(value: Any) -> Any:
    return value


def taker(wanted: Wanted, json: JsonOf | None = None) -> Take:
    """Return a function that finds the converter from a field's type to the contract's type, if there is one.

    Text is not decoded: it remains bytes. Without `json`, the values of JSON fields are not converted.
    """

    def take(one: FieldDescriptor) -> Convert | None:
        kind = kind_of(one)
        if wanted.type == "json":
            return _json(one, kind, json)
        if kind.startswith("wrapped "):
            inner = _of_kind(wanted, kind.removeprefix("wrapped "), value_of(one))
            return None if inner is None else lambda message: inner(message.value)
        return _of_kind(wanted, kind, one)

    return take


def _json(one: FieldDescriptor, kind: str, json: JsonOf | None) -> Convert:
    if kind == "text":
        return _same
    if kind == "wrapped text":
        return lambda message: message.value
    return _same if json is None else json.of_field(one)


def _of_kind(wanted: Wanted, kind: str, one: FieldDescriptor) -> Convert | None:
    if (wanted.type, kind) == ("string", "enum"):
        names = names_of_enum(one)
        return lambda number: names.get(number, str(number))
    long = _long if one.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else _same
    found: dict[tuple[str, str], Convert] = {
        ("string", "text"): _same,
        ("string", "time"): time_text,
        ("long", "whole"): long,
        ("long", "number"): _whole,
        ("long", "time"): lambda stamp: _long(micros_of(stamp)),
        ("double", "whole"): float,
        ("double", "number"): _same,
        ("boolean", "truth"): _same,
        ("decimal", "whole"): Decimal,
        ("decimal", "text"): lambda text: _decimal(text_of(text), wanted.scale),
    }
    return found.get((wanted.type, kind))


def time_taker(times: Times) -> Take:
    """Return a function that finds the converter from a field to epoch microseconds, if there is one."""
    factor, parts = _MICROS // times.per_second or 1, times.per_second // _MICROS or 1

    def of_number(number: int) -> int:
        return within(number * factor // parts)

    def within(micros: int) -> int:
        if times.first_us <= micros <= times.last_us:
            return micros
        raise UnfitError

    def of_stamp(stamp: Any) -> int:
        try:
            return within(micros_of(stamp))
        except UnfitError as why:
            bounds = f"from {_day(times.first_us)} to {_day(times.last_us)}"
            what = why.what or f"must be {bounds}, not a Timestamp of {stamp.seconds} s since the epoch"
            raise UnfitError("bad_timestamp", what) from None

    converts: Mapping[str, Convert] = {
        "whole": of_number,
        "wrapped whole": lambda message: of_number(message.value),
        "time": of_stamp,
    }
    return lambda one: converts.get(kind_of(one))


def _day(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).date().isoformat()


def _long(number: int) -> int:
    if -_MOST_LONG - 1 <= number <= _MOST_LONG:
        return number
    raise UnfitError


def _whole(number: float) -> int:
    if number.is_integer() and abs(number) < _END_OF_WHOLE:
        return int(number)
    raise UnfitError


def _decimal(text: str, scale: int | None) -> Decimal:
    """Return a decimal from its digits, rounded half up to the scale."""
    if not NUMBER.fullmatch(text):
        raise UnfitError
    whole, _, places = text.lstrip("-").partition(".")
    if len(whole) > _MOST_DIGITS or (scale is None and len(places.rstrip("0")) > _MOST_PLACES):
        raise UnfitError
    to = Decimal(1).scaleb(-(_MOST_PLACES if scale is None else scale))
    # To round half up, only the first of the dropped digits is needed.
    rounded = Decimal(text[: text.find(".") + 2 + _MOST_PLACES] if places else text).quantize(
        to, context=_EXACT
    )
    if rounded.adjusted() >= _MOST_DIGITS:
        raise UnfitError
    return rounded
