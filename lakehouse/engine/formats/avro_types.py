"""Parse Avro schemas into types, and measure the types before anything is built from them.

Anyone with access to the registry can register a schema. Spark expands each use of a named type, so a short
schema can expand to more types than fit in memory. Here, each type is a single object, however often it is
used. Its depth, number of types and minimum size are computed from those of its inner types, without
expanding them. Type names are ignored, because Avro does not encode them.

    type_of('{"type": "record", "name": "Metric", "fields": [{"name": "value", "type": ["null", "double"]}]}')
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.common.errors import first_line
from lakehouse.common.printable import cut

MOST_CHARACTERS = 1_000_000
"""The maximum length of a schema's text."""
MOST_NESTED = 32
"""The maximum nesting depth of records, arrays and maps."""
_MOST_BRACKETS = 8 * MOST_NESTED  # a record in a nullable field takes four; defaults and properties add more
_MOST_NAMED = 80  # characters of a name shown in a message
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_LEAST = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
"""The primitive types, each with the minimum size of a value in bytes."""
_LOGICAL = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros",
        "timestamp-millis",
        "timestamp-micros",
        "timestamp-nanos",
        "local-timestamp-millis",
        "local-timestamp-micros",
        "local-timestamp-nanos",
    },
}
_MOST_DIGITS = 38


class UnusableError(ValueError):
    """An error for a schema that cannot be used to read records. The message is a predicate: `has ...`."""


@dataclass(frozen=True, eq=False)
class AvroType:
    """A type in a schema; all uses of a named type are the same object.

    kind     record, enum, fixed, array, map, union or the name of a primitive type
    number   a named type's number within its schema
    names    the names of fields (record), or the symbols (enum)
    types    the types of fields (record), branches (union) or items (array, map)
    logical  date, time-..., timestamp-..., local-timestamp-... or decimal; other logical types are ignored
    size     the size of a `fixed` type, in bytes
    scale    the scale of a decimal; `digits` is the precision with which it is read
    nested   the nesting depth of records, arrays and maps
    nodes    the number of types, counting this type and each use of a type inside it
    least    the minimum size of a value in bytes; zero if values take no bytes
    """

    kind: str
    number: int = 0
    names: tuple[str, ...] = ()
    types: tuple[AvroType, ...] = ()
    logical: str | None = None
    size: int = 0
    digits: int = 0
    scale: int = 0
    nested: int = 0
    nodes: int = 1
    least: int = 0

    @property
    def bare(self) -> AvroType:
        """The type of a non-null value. For a union of int and long, or float and double, the wider type."""
        if self.kind != "union":
            return self
        branches = [one for one in self.types if one.kind != "null"]
        if len(branches) == 1:
            return branches[0].bare
        kinds = {one.kind for one in branches}
        for wide, narrow in (("long", "int"), ("double", "float")):
            if kinds == {wide, narrow} and len(branches) == len(kinds):
                return AvroType(wide, least=_LEAST[wide])
        return self

    @property
    def is_nullable(self) -> bool:
        """Whether a value can be null."""
        return self.kind == "null" or any(one.kind == "null" for one in self.types if self.kind == "union")

    @property
    def is_time_of_spark(self) -> bool:
        """Whether the values are times or dates that Spark can represent and write in ISO 8601."""
        return self.logical == "date" or (self.logical or "").endswith(
            ("timestamp-millis", "timestamp-micros")
        )

    def members(self) -> tuple[AvroType, ...]:
        """Return a union's branches except null, in Spark's order."""
        return tuple(one for one in self.types if one.kind != "null")


def type_of(text: str) -> AvroType:
    """Parse a schema's text.

    Raises UnusableError for text that is not a schema, is too long or nested too deeply, or has a recursive
    type. Also raises it for an array whose items take no bytes, because a few bytes could then encode any
    number of items.
    """
    if len(text) > MOST_CHARACTERS:
        raise UnusableError(f"has {len(text):,} characters; at most {MOST_CHARACTERS:,} are allowed")
    if _brackets(text) > _MOST_BRACKETS:
        raise _too_deep()
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise UnusableError(f"is not JSON: {first_line(error)}") from error
    return _Parser().type_of(parsed, "")


def named(name: str) -> str:
    """Return a name formatted for a message: on one line, and truncated if it is long."""
    return cut(name, _MOST_NAMED)


def _brackets(text: str) -> int:
    """Return the nesting depth of brackets in text."""
    most = depth = 0
    for one in _STRINGS.sub("", text):
        if one in "[{":
            depth += 1
            most = max(most, depth)
        elif one in "]}":
            depth -= 1
    return most


def _too_deep() -> UnusableError:
    return UnusableError(
        f"is nested too deeply: at most {MOST_NESTED} levels of records, arrays and maps are allowed"
    )


class _Parser:
    """A parser for a schema.

    A type's name is registered when its definition begins, and the type itself when the definition ends.
    """

    def __init__(self) -> None:
        self._known: dict[str, AvroType | None] = {}

    def type_of(self, given: Any, space: str) -> AvroType:
        if isinstance(given, dict):
            return self._given(given, space)
        if isinstance(given, list):
            return self._union([self.type_of(one, space) for one in given])
        if not isinstance(given, str):
            raise UnusableError(f"has an invalid type: {named(json.dumps(given))}")
        return _primitive(given, {}) if given in _LEAST else self._used(given, space)

    def _given(self, given: dict[str, Any], space: str) -> AvroType:
        kind = given.get("type")
        if kind in ("record", "error"):
            return self._record(given, space)
        if kind in ("enum", "fixed"):
            return self._named(given, space)
        if kind == "array":
            return self._array(self.type_of(given.get("items"), space))
        if kind == "map":
            return _made("map", [self.type_of(given.get("values"), space)], nested=1, least=1)
        is_primitive = isinstance(kind, str) and kind in _LEAST
        return _primitive(str(kind), given) if is_primitive else self.type_of(kind, space)

    def _used(self, name: str, space: str) -> AvroType:
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._known:
            full = name
        if full not in self._known:
            raise UnusableError(f"refers to an undefined type, {named(name)}")
        found = self._known[full]
        if found is None:
            raise UnusableError(f"has a recursive type, {named(full)}, which is not supported")
        return found

    def _begin(self, given: Mapping[str, Any], space: str) -> tuple[str, str]:
        """Register a type's name when its definition begins. Return its full name and namespace."""
        name, own = given.get("name"), given.get("namespace")
        if not isinstance(name, str):
            raise UnusableError(f"has a type without a name: {named(json.dumps(given))}")
        if "." not in name:
            outer = own if isinstance(own, str) else space
            name = f"{outer}.{name}" if outer else name
        if name in self._known:
            raise UnusableError(f"has two types named {named(name)}")
        self._known[name] = None
        return name, name.rpartition(".")[0]

    def _record(self, given: Mapping[str, Any], space: str) -> AvroType:
        name, inner = self._begin(given, space)
        number = len(self._known)
        fields = given.get("fields")
        if not isinstance(fields, list) or not all(isinstance(one, dict) for one in fields):
            raise UnusableError(f"has a record, {named(name)}, without fields")
        names = [one.get("name") for one in fields]
        if not all(isinstance(one, str) for one in names) or len(set(names)) < len(names):
            raise UnusableError(f"has a record, {named(name)}, with duplicate or missing field names")
        types = [self.type_of(one.get("type"), inner) for one in fields]
        least = sum(one.least for one in types)
        found = _made("record", types, nested=1, least=least, names=tuple(names), number=number)
        self._known[name] = found
        return found

    def _named(self, given: Mapping[str, Any], space: str) -> AvroType:
        name, _ = self._begin(given, space)
        number, found = len(self._known), None
        if given["type"] == "fixed":
            size = given.get("size")
            if type(size) is not int or size < 0:
                raise UnusableError(f"has a fixed type, {named(name)}, without a size")
            most = min(_MOST_DIGITS, math.floor((8 * size - 1) * math.log10(2))) if size else 0
            digits, scale = _decimal(given, most)
            logical = "decimal" if digits else None
            found = AvroType("fixed", number, (), (), logical, size, digits, scale, least=size)
        else:
            symbols = given.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
                raise UnusableError(f"has an enum, {named(name)}, without symbols")
            found = AvroType("enum", number, tuple(symbols), least=1)
        self._known[name] = found
        return found

    def _array(self, item: AvroType) -> AvroType:
        if not item.least:
            raise UnusableError(
                "has an array whose items take no bytes, so a few bytes could encode any number of items"
            )
        return _made("array", [item], nested=1, least=1)

    def _union(self, branches: list[AvroType]) -> AvroType:
        if not branches:
            raise UnusableError("has an empty union")
        return _made("union", branches, nested=0, least=1 + min(one.least for one in branches))


def _made(
    kind: str,
    types: Iterable[AvroType],
    *,
    nested: int,
    least: int,
    names: tuple[str, ...] = (),
    number: int = 0,
) -> AvroType:
    """Create a type, and compute its depth, number of types and minimum size from its inner types."""
    types = tuple(types)
    depth = nested + max((one.nested for one in types), default=0)
    if depth > MOST_NESTED:
        raise _too_deep()
    nodes = 1 + sum(one.nodes for one in types)
    return AvroType(kind, number, names, types, nested=depth, nodes=nodes, least=least)


def _primitive(kind: str, given: Mapping[str, Any]) -> AvroType:
    logical = given.get("logicalType")
    if kind == "bytes":
        digits, scale = _decimal(given, _MOST_DIGITS)
        return AvroType(
            kind, logical="decimal" if digits else None, digits=digits, scale=scale, least=_LEAST[kind]
        )
    known = isinstance(logical, str) and logical in _LOGICAL.get(kind, ())
    return AvroType(kind, logical=logical if known else None, least=_LEAST[kind])


def _decimal(given: Mapping[str, Any], most: int) -> tuple[int, int]:
    """Return the precision and scale for reading a decimal, or zeros for any other type.

    The greatest possible precision replaces the schema's precision, because Spark truncates numbers that have
    more digits than their schema declares.
    """
    precision, scale = given.get("precision"), given.get("scale", 0)
    if given.get("logicalType") != "decimal" or type(precision) is not int or type(scale) is not int:
        return 0, 0
    is_decimal = 0 <= scale <= precision and precision > 0 and scale <= most
    if given["type"] == "fixed" and precision > math.floor((8 * given["size"] - 1) * math.log10(2)):
        is_decimal = False
    return (most, scale) if is_decimal else (0, 0)
