"""Converts fields of Protobuf messages to columns of the contract's types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from operator import attrgetter
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from lakehouse.formats.protobuf_plain import NUMBER, TIME, WRAPPERS, json_of_any

Convert = Callable[[Any], Any]
"""Makes a value of a message one of the contract's type; null for one that is examined further."""
Take = Callable[[FieldDescriptor], Convert | None]
"""Says how a field's values are converted; null: it cannot be taken."""
_MICROS = 1_000_000
_MOST_DIGITS, _MOST_PLACES = 29, 9
_KINDS = {
    FieldDescriptor.CPPTYPE_INT32: "whole",
    FieldDescriptor.CPPTYPE_INT64: "whole",
    FieldDescriptor.CPPTYPE_UINT32: "whole",
    FieldDescriptor.CPPTYPE_UINT64: "whole",
    FieldDescriptor.CPPTYPE_DOUBLE: "number",
    FieldDescriptor.CPPTYPE_FLOAT: "number",
    FieldDescriptor.CPPTYPE_BOOL: "truth",
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_ENUM: "enum",
}


@dataclass(frozen=True)
class Wanted:
    """A field of the contract, in plain values; `type` is the name of its FieldType."""

    column: str
    path: tuple[str, ...]
    type: str
    required: bool
    scale: int | None


@dataclass(frozen=True)
class Times:
    """The event time: its path, how many parts a number has in a second, and the span that is accepted."""

    path: tuple[str, ...]
    per_second: int
    first_us: int
    last_us: int


@dataclass(frozen=True)
class Taken:
    """How a field is taken of messages of one type; `get` is null where the type has nothing that fits."""

    get: Callable[[Sequence[Message]], list[Any]] | None
    is_there: bool


def taken(
    descriptor: Descriptor,
    path: tuple[str, ...],
    take: Take,
) -> Taken:
    """Return how the field at a path is taken; there may be none, or one that does not fit."""
    steps, here = list[FieldDescriptor](), cast("Descriptor | None", descriptor)
    for name in path:
        found = None if here is None else _named(here, name)
        if found is None:
            return Taken(None, is_there=False)
        steps.append(found)
        here = None if found.is_repeated else found.message_type
    convert = take(steps[-1])
    if convert is None or any(one.is_repeated for one in steps[:-1]):
        return Taken(None, is_there=True)
    return Taken(_getter(steps, convert), is_there=True)


def _named(descriptor: Descriptor, name: str) -> FieldDescriptor | None:
    """Return the field of this name, or of this name in JSON."""
    known = descriptor.fields_by_name.get(name)
    return known or next((one for one in descriptor.fields if one.json_name == name), None)


def _getter(steps: Sequence[FieldDescriptor], convert: Convert) -> Callable[[Sequence[Message]], list[Any]]:
    """Return what takes the values out of messages; null where one is absent."""
    *outer, last = steps

    def within(message: Any) -> Any:
        for step in outer:
            if message is None or (step.has_presence and not message.HasField(step.name)):
                return None
            message = getattr(message, step.name)
        return message

    def get(messages: Sequence[Any]) -> list[Any]:
        if outer:
            messages = [within(message) for message in messages]
        if not outer and last.message_type is None:
            found = list(map(attrgetter(last.name), messages))
            if last.has_presence and not last.is_repeated:  # an absent one reads as the type's zero
                has, name = type(messages[0]).HasField, last.name
                found = [
                    value if value or has(message, name) else None
                    for value, message in zip(found, messages, strict=True)
                ]
        else:
            found = [
                None
                if message is None or (last.has_presence and not message.HasField(last.name))
                else getattr(message, last.name)
                for message in messages
            ]
        return found if convert is _same else [None if one is None else convert(one) for one in found]

    return get


def _same(value: Any) -> Any:
    return value


def _kind(one: FieldDescriptor) -> str:
    """Return what a field's values are, in one word."""
    if one.is_repeated:
        return "object"
    if one.message_type is None:
        is_bytes = one.type == FieldDescriptor.TYPE_BYTES
        return "bytes" if is_bytes else _KINDS[one.cpp_type]
    name = one.message_type.full_name
    return f"wrapped {WRAPPERS[name]}" if name in WRAPPERS else "time" if name == TIME else "object"


def taker(wanted: Wanted) -> Take:
    """Return what says, of a field, how its values become those of the contract's type; null: not at all."""

    def take(one: FieldDescriptor) -> Convert | None:
        kind = _kind(one)
        if kind.startswith("wrapped "):
            of_inner = _of_kind(wanted, kind.removeprefix("wrapped "), one)
            return None if of_inner is None else lambda message: of_inner(message.value)
        return _of_kind(wanted, kind, one)

    return take


def _of_kind(wanted: Wanted, kind: str, one: FieldDescriptor) -> Convert | None:
    if wanted.type == "json":
        return _same if kind == "text" else json_of_any if kind == "object" else None
    if wanted.type == "string" and one.enum_type is not None:
        names = {number: value.name for number, value in one.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if wanted.type == "decimal":
        return {"text": lambda text: _decimal(text, wanted.scale), "whole": Decimal}.get(kind)
    fitting = {"string": ("text",), "long": ("whole",), "double": ("whole", "number"), "boolean": ("truth",)}
    return _same if kind in fitting[wanted.type] else None


def time_taker(times: Times) -> Take:
    """Return what says, of a field, how its values become microseconds since the epoch; null: not at all."""
    factor, parts = _MICROS // times.per_second or 1, times.per_second // _MICROS or 1
    first, last = times.first_us, times.last_us

    def micros(number: int) -> int | None:
        found = number * factor // parts
        return found if first <= found <= last else None

    def take(one: FieldDescriptor) -> Convert | None:
        return {
            "whole": micros,
            "wrapped whole": lambda message: micros(message.value),
            "time": lambda stamp: stamp.seconds * _MICROS + stamp.nanos // 1000,
        }.get(_kind(one))

    return take


def _decimal(text: str, scale: int | None) -> Decimal | None:
    """Return digits as an exact decimal, rounded half up to the scale; null for what is examined further."""
    if not NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    whole, _, places = text.lstrip("-").partition(".")
    if scale is not None and len(whole) < _MOST_DIGITS:
        return number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    return number if len(whole) <= _MOST_DIGITS and len(places) <= _MOST_PLACES else None
