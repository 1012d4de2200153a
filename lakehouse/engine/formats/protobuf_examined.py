"""Write records as JSON for validation, if their typed columns do not prove them valid.

The JSON contains only the contract's fields, so no other field can make a record invalid. If a field contains
an object or array instead of a value of the contract's type, an empty object or array is written. If a JSON
field already has a typed column, its value in this JSON only shows that the field is present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lakehouse.engine.formats.protobuf_columns import Taken, Wanted
from lakehouse.engine.formats.protobuf_json import (
    JsonOf,
    duration_text,
    entries_of,
    key_text,
    mask_text,
    number_text,
    quoted,
    time_text,
    value_text,
)
from lakehouse.engine.formats.protobuf_kinds import (
    NUMBER,
    UnfitError,
    kind_of,
    kind_of_message,
    kind_of_one,
    micros_of,
    named,
    names_of_enum,
    text_of,
    value_of,
)

EVENT_TIME = "event_time"
"""The column name of the event time; this module also uses it as the name of the event time's type."""
_LONGEST_TEXT, _LONGEST_NUMBER = 100, 1_000  # in characters
_EXPECTED = {
    "string": "a string",
    "long": "a whole number",
    "double": "a number",
    "decimal": "a number",
    "boolean": "a boolean",
    EVENT_TIME: "a time",
}


@dataclass
class _Node:
    """A name in the contract's paths, with the field whose path ends there, if any, and the names below it.

    `is_column` means that the field's values are already a column.
    """

    leaf: Wanted | None = None
    is_column: bool = False
    below: dict[str, _Node] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """The type of the contract's field, or an empty string if no field ends here."""
        return "" if self.leaf is None else self.leaf.type


class Examined:
    """A JSON writer for messages of one type."""

    def __init__(self, descriptor: Descriptor, wanted: Iterable[tuple[Wanted, Taken]], json: JsonOf) -> None:
        """Create a writer for the contract's fields and the event time, given access to their values."""
        self._descriptor, self._json = descriptor, json
        self._root = _Node()
        for one, taken in wanted:
            node = self._root
            for name in one.path:
                node = node.below.setdefault(name, _Node())
            if node.leaf is None:
                node.leaf, node.is_column = one, taken.get is not None

    def body(self, message: Any) -> tuple[str, dict[Wanted, UnfitError]]:
        """Return a message's JSON, and the errors that JSON cannot show, keyed by field."""
        body = _Body(self._json)
        return body.object(self._root, message, self._descriptor), body.unfit


class _Body:
    """A JSON writer for one record."""

    def __init__(self, json: JsonOf) -> None:
        self._json = json
        self.unfit: dict[Wanted, UnfitError] = {}

    def object(self, node: _Node, message: Any, descriptor: Descriptor) -> str:
        """Return a message's fields below a node as a JSON object."""
        entries = dict[str, Callable[[_Node], str]]()
        for name in node.below:
            one = named(descriptor, name)
            if one is not None and (not one.has_presence or message.HasField(one.name)):
                entries[name] = partial(self._field, getattr(message, one.name), one)
        return self._entries(node, entries)

    def _entries(self, node: _Node, entries: Mapping[str, Callable[[_Node], str]]) -> str:
        written = []
        for name, write in entries.items():
            below = node.below[name]
            try:
                text = write(below)
            except UnfitError as why:
                text = "[]"
                if below.leaf is not None:
                    self.unfit[below.leaf] = why
            written.append(f"{quoted(name)}:{text}")
        return f"{{{','.join(written)}}}"

    def _field(self, value: Any, one: FieldDescriptor, node: _Node) -> str:
        if node.type == "json" and not node.is_column:
            return self._json.of_field(one)(value)
        kind = kind_of(one)
        if kind == "list":
            return "[]"
        if kind != "map":
            return self._one(node, value, one)
        found = {key_text(key): each for key, each in entries_of(value)} if node.below else {}
        of = value_of(one)
        return self._entries(
            node, {name: partial(self._field, found[name], of) for name in node.below if name in found}
        )

    def _one(self, node: _Node, value: Any, one: FieldDescriptor) -> str:
        kind = kind_of_one(one)
        if one.message_type is not None:
            return self._message(node, value, one.message_type, kind)
        if kind == "enum":
            return _text(node.type, names_of_enum(one).get(value, str(value)))
        return _scalar(node.type, value, kind)

    def _message(self, node: _Node, value: Any, type_: Descriptor, kind: str) -> str:
        if kind.startswith("wrapped "):
            return _scalar(node.type, value.value, kind.removeprefix("wrapped "))
        if kind == "any" and node.below:
            declared, held = self._json.any_of(value)
            return self._message(node, held, declared, kind_of_message(declared))
        writes: dict[str, Callable[[], str]] = {
            "time": lambda: _time(node.type, value),
            "duration": lambda: quoted(duration_text(value)),
            "mask": lambda: quoted(mask_text(value)),
            "struct": lambda: self._struct(node, value),
            "value": lambda: self._value(value, node),
            "values": lambda: "[]",
            "any": lambda: "{}",
            "object": lambda: self.object(node, value, type_),
        }
        return writes[kind]()

    def _struct(self, node: _Node, struct: Any) -> str:
        found = dict(entries_of(struct.fields)) if node.below else {}
        return self._entries(
            node, {name: partial(self._value, found[name]) for name in node.below if name in found}
        )

    def _value(self, value: Any, node: _Node) -> str:
        which = value.WhichOneof("kind")
        if node.type == "json" and not node.is_column:
            return self._json.of_value(value)
        if which == "struct_value":
            return self._struct(node, value.struct_value)
        if which == "list_value":
            return "[]"
        return _text(node.type, text_of(value.string_value)) if which == "string_value" else value_text(value)


def _scalar(type_: str, value: Any, kind: str) -> str:
    """Return a value as JSON, reduced to what is needed to validate it as the contract's type."""
    if kind == "text":
        return _text(type_, text_of(value))
    if kind == "bytes":
        if type_ == "json":
            return "{}"
        raise UnfitError("wrong_type", f"must be {_EXPECTED.get(type_, 'an object')}, not bytes")
    if kind == "truth":
        return "true" if value else "false"
    return number_text(value) if kind == "number" else str(value)


def _text(type_: str, text: str) -> str:
    if type_ == "json":
        return "null" if text.strip(" \t\r\n") == "null" else "{}"
    if type_ == "decimal" and NUMBER.fullmatch(text):
        # No valid decimal has this many digits. A final 1 replaces the remaining digits, because they might
        # not all be zeros.
        return text if len(text) <= _LONGEST_NUMBER else f"{text[: _LONGEST_NUMBER - 1]}1"
    return quoted(text if type_ == "string" else text[:_LONGEST_TEXT])


def _time(type_: str, stamp: Any) -> str:
    return str(micros_of(stamp)) if type_ == "long" else quoted(time_text(stamp))
