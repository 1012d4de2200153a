"""The kinds of Protobuf fields, for converting them to columns and JSON."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

TIME = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{name}Value": f"wrapped {kind}"
    for kind, names in {
        "whole": ("Int32", "Int64", "UInt32", "UInt64"),
        "number": ("Float", "Double"),
        "text": ("String",),
        "truth": ("Bool",),
        "bytes": ("Bytes",),
    }.items()
    for name in names
}
_OF_MESSAGES = _WRAPPERS | {
    TIME: "time",
    "google.protobuf.Struct": "struct",
    "google.protobuf.Value": "value",
    "google.protobuf.ListValue": "values",
    "google.protobuf.Any": "any",
    "google.protobuf.Duration": "duration",
    "google.protobuf.FieldMask": "mask",
}
_OF_TYPES = {
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
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
"""A JSON number without an exponent."""
_MICROS, _NANOS = 1_000_000, 1_000_000_000


class UnfitError(ValueError):
    """An error for a value that its field does not allow.

    rule  the rule in the dead letter's reason. If it is None, the value can be written as JSON, and
          validating the JSON finds the reason
    what  the reason's message without the leading field name, such as "is not UTF-8"
    """

    def __init__(self, rule: str | None = None, what: str = "") -> None:
        super().__init__(what)
        self.rule, self.what = rule, what


def kind_of(field: FieldDescriptor) -> str:
    """Return the kind of a field's values, or "list" or "map" if the field is repeated."""
    if field.is_repeated:
        return "map" if is_map(field) else "list"
    return kind_of_one(field)


def kind_of_one(field: FieldDescriptor) -> str:
    """Return the kind of one value in a field."""
    if field.message_type is not None:
        return kind_of_message(field.message_type)
    return "bytes" if field.type == FieldDescriptor.TYPE_BYTES else _OF_TYPES[field.cpp_type]


def kind_of_message(descriptor: Descriptor) -> str:
    """Return the kind of a message type, usually "object"."""
    return _OF_MESSAGES.get(descriptor.full_name, "object")


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a repeated field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def named(descriptor: Descriptor, name: str) -> FieldDescriptor | None:
    """Return the field with this name or JSON name, or None if there is no such field."""
    known = descriptor.fields_by_name.get(name)
    return known or next((one for one in descriptor.fields if one.json_name == name), None)


def value_of(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field `value` of a message field's type, which is a wrapper or a map entry."""
    if field.message_type is None:
        raise TypeError(f"{field.full_name} is not a message field")
    return field.message_type.fields_by_name["value"]


def names_of_enum(field: FieldDescriptor) -> dict[int, str]:
    """Return the names of an enum's values, keyed by number."""
    values = {} if field.enum_type is None else field.enum_type.values_by_number
    return {number: value.name for number, value in values.items()}


def text_of(value: bytes) -> str:
    """Return a string field's text, given its bytes. Raises UnfitError if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise UnfitError("not_utf8", "is not UTF-8") from None


def micros_of(stamp: Any) -> int:
    """Return a Timestamp in epoch microseconds, rounded down.

    Raises UnfitError for an invalid Timestamp.
    """
    if not 0 <= stamp.nanos < _NANOS:
        raise UnfitError("bad_timestamp", f"has a Timestamp whose nanoseconds are {stamp.nanos}")
    micros: int = stamp.seconds * _MICROS + stamp.nanos // 1000
    return micros
