"""Write Protobuf values as JSON, for JSON fields in the contract.

The mapping is ProtoJSON, Protobuf's own. Fields have their JSON names, or their own names if JSON names
clash, and unset fields are omitted. Unlike in ProtoJSON, 64-bit integers are numbers, not strings. To bound
time and memory, the nesting depth is limited, and so is the length of the JSON relative to the size of the
value.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from lakehouse.engine.formats.protobuf_kinds import (
    UnfitError,
    is_map,
    kind_of_message,
    kind_of_one,
    micros_of,
    names_of_enum,
    text_of,
    value_of,
)

_LEAST, _PER_BYTE, _MOST = 16_384, 24, 16_777_216  # characters of JSON: minimum, per byte of a value, maximum
DEEPEST = 100
"""The maximum nesting depth of messages, the same as in Protobuf's own parser."""
_EPOCH, _DAYS = datetime(1970, 1, 1, tzinfo=UTC), (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999
_MOST_SECONDS = 315_576_000_000  # in a Duration
_WHOLE_DOUBLES = 2**53
_NANOS = 1_000_000_000
_PATH = re.compile(r"[a-z0-9]*(?:_[a-z0-9]+)*(?:\.[a-z0-9]*(?:_[a-z0-9]+)*)*")
quoted: Callable[[str], str] = json.encoder.encode_basestring
"""Writes text as a JSON string, with no more escapes than necessary."""


@dataclass
class _Out:
    """The JSON written so far, and the remaining limits."""

    left: int
    depth: int = 0
    text: io.StringIO = field(default_factory=io.StringIO)

    def add(self, text: str) -> None:
        self.spend(len(text))
        self.text.write(text)

    def spend(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise UnfitError("undecodable", "expands to too much JSON for its size in bytes")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise UnfitError("undecodable", f"is nested deeper than {DEEPEST} messages")


Write = Callable[[_Out, Any], None]


class JsonOf:
    """A JSON writer for the values of a schema's fields.

    `types` contains the types as the schema declares them. `parsed` contains the types used for parsing, in
    which text is bytes.
    """

    def __init__(self, types: DescriptorPool, parsed: DescriptorPool) -> None:
        self._types, self._parsed = types, parsed
        self._fields: dict[str, dict[int, tuple[str, Write]]] = {}
        self._special: dict[str, Write] = {
            "time": lambda out, value: out.add(f'"{time_text(value)}"'),
            "duration": lambda out, value: out.add(f'"{duration_text(value)}"'),
            "mask": lambda out, value: out.add(quoted(mask_text(value))),
            "struct": self._struct,
            "value": self._value,
            "values": self._values,
            "any": self._any,
        }

    def of_field(self, one: FieldDescriptor) -> Callable[[Any], str]:
        """Return a function that writes a field's value, or all values of a repeated field, as JSON.

        The function raises UnfitError for values that JSON cannot represent.
        """
        return self._written(self._of_field(one))

    def of_value(self, value: Any) -> str:
        """Return a Value as JSON. Raises UnfitError for values that JSON cannot represent."""
        return self._written(self._value)(value)

    def _written(self, write: Write) -> Callable[[Any], str]:
        def written(value: Any) -> str:
            out = _Out(min(_LEAST + _PER_BYTE * _bytes_of(value), _MOST))
            write(out, value)
            return out.text.getvalue()

        return written

    def any_of(self, value: Any) -> tuple[Descriptor, Message]:
        """Return the declared type of the message in an Any, and the message.

        Raises UnfitError if the schema lacks the type, or if the bytes do not match it.
        """
        name = text_of(value.type_url).rpartition("/")[2]
        try:
            declared = self._types.FindMessageTypeByName(name)
            parsed = GetMessageClass(self._parsed.FindMessageTypeByName(name)).FromString(value.value)
        except KeyError:
            what = f"has an Any of type {name[:100]!r}, which its schema does not define"
            raise UnfitError("undecodable", what) from None
        except DecodeError:
            raise UnfitError("undecodable", "has an Any whose bytes do not match its type") from None
        return declared, parsed

    def _of_field(self, one: FieldDescriptor) -> Write:
        if is_map(one):
            return self._map(one)
        write = self._of_one(one)
        return (lambda out, values: self._list(out, values, write)) if one.is_repeated else write

    def _of_one(self, one: FieldDescriptor) -> Write:
        if one.message_type is not None:
            return self._of_message(one.message_type)
        if one.enum_type is not None:
            names = {number: quoted(name) for number, name in names_of_enum(one).items()}
            return lambda out, value: out.add(names.get(value) or str(value))
        write = _SCALARS[kind_of_one(one)]
        return lambda out, value: out.add(write(value))

    def _of_message(self, descriptor: Descriptor) -> Write:
        kind = kind_of_message(descriptor)
        if kind.startswith("wrapped "):
            write = _SCALARS[kind.removeprefix("wrapped ")]
            return lambda out, message: out.add(write(message.value))
        return self._special.get(kind) or (lambda out, message: self._object(out, message, descriptor))

    def _object(self, out: _Out, message: Any, descriptor: Descriptor, first: str = "") -> None:
        """Write a message as an object that begins with the fields in the text `first`."""
        out.deeper()
        out.add("{" + first)
        comma = "," if first else ""
        fields = self._fields_of(descriptor)
        for one, value in message.ListFields():
            name, write = fields.get(one.number) or (None, None)
            if name is not None and write is not None:  # otherwise it is an extension
                out.add(f"{comma}{name}:")
                write(out, value)
                comma = ","
        out.add("}")
        out.depth -= 1

    def _fields_of(self, descriptor: Descriptor) -> dict[int, tuple[str, Write]]:
        """Return the JSON names and writers for a message's fields, by field number."""
        known = self._fields.get(descriptor.full_name)
        if known is None:
            names = Counter(one.json_name for one in descriptor.fields)
            known = self._fields[descriptor.full_name] = {
                one.number: (
                    quoted(one.json_name if names[one.json_name] == 1 else one.name),
                    self._of_field(one),
                )
                for one in descriptor.fields
            }
        return known

    def _list(self, out: _Out, values: Any, write: Write) -> None:
        comma = "["
        for one in values:
            out.add(comma)
            write(out, one)
            comma = ","
        out.add("[]" if comma == "[" else "]")

    def _map(self, one: FieldDescriptor) -> Write:
        write = self._of_one(value_of(one))

        def write_map(out: _Out, values: Any) -> None:
            comma = "{"
            for name, found in entries_of(values):
                out.add(f"{comma}{quoted(key_text(name))}:")
                write(out, found)
                comma = ","
            out.add("{}" if comma == "{" else "}")

        return write_map

    def _struct(self, out: _Out, value: Any) -> None:
        out.deeper()
        comma = "{"
        for name, found in entries_of(value.fields):
            out.add(f"{comma}{quoted(name)}:")
            self._value(out, found)
            comma = ","
        out.add("{}" if comma == "{" else "}")
        out.depth -= 1

    def _values(self, out: _Out, value: Any) -> None:
        out.deeper()
        self._list(out, value.values, self._value)
        out.depth -= 1

    def _value(self, out: _Out, value: Any) -> None:
        which = value.WhichOneof("kind")
        if which == "struct_value":
            self._struct(out, value.struct_value)
        elif which == "list_value":
            self._values(out, value.list_value)
        else:
            out.add(value_text(value))

    def _any(self, out: _Out, value: Any) -> None:
        if not (value.type_url or value.value):
            out.add("{}")
            return
        out.spend(len(value.value))
        declared, inner = self.any_of(value)
        first = f'"@type":{quoted(text_of(value.type_url))}'
        if kind_of_message(declared) == "object":
            self._object(out, inner, declared, first)
            return
        out.deeper()
        out.add("{" + first + ',"value":')
        self._of_message(declared)(out, inner)
        out.add("}")
        out.depth -= 1


def entries_of(values: Any) -> list[tuple[Any, Any]]:
    """Return a map's entries. Raises UnfitError for keys that are not UTF-8."""
    try:
        return [(key, values[key]) for key in values]
    except UnicodeDecodeError:
        raise UnfitError("not_utf8", "is not UTF-8") from None


def key_text(key: Any) -> str:
    """Return a map's key as a JSON name."""
    return str(key).lower() if isinstance(key, bool) else str(key)


def value_text(value: Any) -> str:
    """Return the JSON for a Value that is neither an object nor an array.

    Raises UnfitError for NaN and infinity.
    """
    which = value.WhichOneof("kind")
    if which == "string_value":
        return quoted(text_of(value.string_value))
    if which == "bool_value":
        return "true" if value.bool_value else "false"
    if which != "number_value":
        return "null"
    number = value.number_value
    if not math.isfinite(number):
        raise UnfitError("not_finite", "has a Value that is NaN or infinite")
    is_whole = number.is_integer() and abs(number) <= _WHOLE_DOUBLES
    return str(int(number)) if is_whole else repr(number)


def time_text(stamp: Any) -> str:
    """Return a Timestamp in ISO 8601. Raises UnfitError outside the years 1 to 9999."""
    micros_of(stamp)
    first, last = _DAYS
    if not first <= stamp.seconds <= last:
        raise UnfitError(
            "bad_timestamp", f"has a Timestamp of {stamp.seconds} s, outside the years 1 to 9999"
        )
    whole = (_EPOCH + timedelta(seconds=stamp.seconds)).replace(tzinfo=None).isoformat()
    return f"{whole}{_fraction(stamp.nanos)}Z"


def duration_text(duration: Any) -> str:
    """Return a Duration in seconds. Raises UnfitError if it is invalid."""
    seconds, nanos = duration.seconds, duration.nanos
    if abs(seconds) > _MOST_SECONDS or abs(nanos) >= _NANOS or seconds * nanos < 0:
        raise UnfitError("undecodable", f"has a Duration of {seconds} s and {nanos} ns, which is invalid")
    sign = "-" if seconds < 0 or nanos < 0 else ""
    return f"{sign}{abs(seconds)}{_fraction(abs(nanos))}s"


def _fraction(nanos: int) -> str:
    """Return the fraction of a second for JSON, with the fewest possible digits: 0, 3, 6 or 9."""
    digits = f"{nanos:09}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}" if digits else ""


def mask_text(mask: Any) -> str:
    """Return a FieldMask's paths with JSON names. Raises UnfitError for a path without a JSON name."""
    paths = [text_of(one) for one in mask.paths]
    if wrong := next((one for one in paths if not _PATH.fullmatch(one)), None):
        raise UnfitError(
            "undecodable", f"has a FieldMask with the path {wrong[:100]!r}, which has no JSON name"
        )
    return ",".join(re.sub("_([a-z0-9])", lambda found: found[1].upper(), one) for one in paths)


def number_text(number: float) -> str:
    """Return a double as JSON; NaN and infinities become strings."""
    return repr(number) if math.isfinite(number) else f'"{_NOT_FINITE.get(number, "NaN")}"'


def _bytes_of(value: Any) -> int:
    """Return the approximate encoded size of a value, or of all values in a repeated field."""
    if isinstance(value, Message):
        return value.ByteSize()
    if isinstance(value, bytes | str):
        return len(value)
    if hasattr(value, "items"):
        return sum(_bytes_of(key) + _bytes_of(value[key]) for key, _ in entries_of(value))
    return sum(map(_bytes_of, value)) if hasattr(value, "append") else 2


_NOT_FINITE = {float("inf"): "Infinity", float("-inf"): "-Infinity"}
_SCALARS: dict[str, Callable[[Any], str]] = {
    "whole": str,
    "number": number_text,
    "truth": lambda value: "true" if value else "false",
    "text": lambda value: quoted(text_of(value)),
    "bytes": lambda value: f'"{base64.b64encode(value).decode()}"',
}
