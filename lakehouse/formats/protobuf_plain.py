"""Converts Protobuf messages to JSON, for the few that are examined field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

TIME = "google.protobuf.Timestamp"
WRAPPERS = {
    f"google.protobuf.{name}Value": kind
    for kind, names in {
        "whole": ("Int32", "Int64", "UInt32", "UInt64"),
        "number": ("Float", "Double"),
        "text": ("String",),
        "truth": ("Bool",),
    }.items()
    for name in names
}
"""Messages that stand for a value which may be absent, and of which kind that is."""
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
"""Digits as JSON has them in a number, without an exponent."""
_ANY = {
    f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any", "Duration", "FieldMask")
}
_MARKED = re.compile(r'"\\u0000([^"]*)"')


def json_of_any(value: Any) -> str:
    """Return the JSON of a message, or of several."""
    return _text(_plain(value, (), ()))


def json_of(message: Message, money: Collection[tuple[str, ...]]) -> str:
    """Return the JSON that a message would be; digits at the paths of `money` are numbers there."""
    return _text(_plain(message, money, ()))


def _text(value: Any) -> str:
    return _MARKED.sub(r"\1", json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _plain(value: Any, money: Collection[tuple[str, ...]], path: tuple[str, ...]) -> Any:
    """Return a message, or a value in one, in Python's own types."""
    if isinstance(value, Message):
        name = value.DESCRIPTOR.full_name
        if name in WRAPPERS:
            return _scalar(value.value)  # type: ignore[attr-defined]
        if name == TIME or name in _ANY:
            return json_format.MessageToDict(value)
        return _fields(value, money, path)
    if hasattr(value, "items"):
        return {str(key): _plain(one, money, (*path, str(key))) for key, one in value.items()}
    if hasattr(value, "append"):
        return [_plain(one, money, ()) for one in value]
    return _scalar(value)


def _fields(message: Message, money: Collection[tuple[str, ...]], path: tuple[str, ...]) -> dict[str, Any]:
    """Return a message's fields, each by its name and by its name in JSON."""
    found: dict[str, Any] = {}
    for one in message.DESCRIPTOR.fields:
        if one.has_presence and not message.HasField(one.name):
            continue
        value = getattr(message, one.name)
        for key in (one.name, one.json_name):
            inner = _plain(value, money, (*path, key))
            if one.enum_type is not None and value in one.enum_type.values_by_number:
                inner = one.enum_type.values_by_number[value].name
            is_money = (*path, key) in money and NUMBER.fullmatch(str(inner))
            found[key] = f"\0{inner}" if is_money else inner
    return found


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    return value.hex() if isinstance(value, bytes) else value
