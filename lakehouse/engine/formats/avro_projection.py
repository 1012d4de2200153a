"""The part of a writer schema that a contract needs, as two schemas for Spark's reader.

    writer   describes the same encoding as the producer's schema, so that Avro can skip unneeded fields
    reader   contains only the contract's fields

No text from the original schema reaches Spark: in both schemas, fields and types have generated names, such
as `f0`. Spark would confuse names that differ only in case, and could not read a string with a property such
as `java-class`. Unneeded fields are skipped by their length, so they take no memory and cannot cause a record
to be refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.engine.formats.avro_types import AvroType, UnusableError, type_of
from lakehouse.streams.contract import Contract, FieldType

MOST_TYPES = 10_000
"""The maximum number of types in a contract's fields. Each use of a named type counts."""
MOST_FIXED = 1_000_000
"""The maximum size of a `fixed` type in a contract's fields. Avro allocates all of it before reading."""
MOST_MEMORY = 512 << 20
"""The maximum memory, in bytes, for a value's arrays and maps."""
_ENVELOPE, RECORD, AFTER = "lakehouse_envelope", "record", "after"
_WHOLE, _VALUE, _SKIPPED = "w", "v", "s"  # prefixes of generated type names, by purpose
_WITHIN = {"array": "items", "map": "values"}
_COUNTED = 10**12


@dataclass(frozen=True)
class Wanted:
    """The part of a record, or of a value inside it, that a contract needs.

    is_value  whether a value of the contract's type, or the event time, is needed
    is_whole  whether a value of any type is needed, as JSON
    inner     for a record: the needed parts of its fields, keyed by name
    """

    is_value: bool = False
    is_whole: bool = False
    inner: Mapping[str, Wanted] = field(default_factory=dict)

    @property
    def is_read_whole(self) -> bool:
        """Whether the value is read with everything inside it."""
        return self.is_whole or (self.is_value and bool(self.inner))


def wanted_of(contract: Contract) -> Wanted:
    """Return the parts of a record that a contract needs."""
    leaves = {one.path: one.type is FieldType.JSON for one in contract.fields}
    leaves.setdefault(contract.event_time_path, False)

    def at(path: tuple[str, ...]) -> Wanted:
        inner = dict.fromkeys(one[len(path)] for one in leaves if one[: len(path)] == path and one != path)
        is_whole = leaves.get(path)
        return Wanted(is_whole is False, bool(is_whole), {name: at((*path, name)) for name in inner})

    return at(())


def name_of(position: int) -> str:
    """Return the name that both schemas use for the field at this position."""
    return f"f{position}"


@dataclass(frozen=True, eq=False)
class Projection:
    """A schema's projection: its type, the needed parts, and the two schemas.

    most   the maximum size of an encoded value, in bytes, based on worst-case memory use; None means no limit
    first  bytes that precede each record to make it a union with one branch. Without them, Avro would reuse
           one record object, whose buffers stay as large as the longest string so far
    """

    type: AvroType
    wanted: Wanted
    writer: str
    reader: str
    most: int | None
    first: bytes


def projection_of(contract: Contract, text: str, after: int = 0) -> Projection:
    """Return the projection of a schema onto a contract's fields.

    `after` is the number of bytes to read after each record.

    Raises UnusableError for the reasons in `avro_types`, for too many types, for a `fixed` type that is too
    large, and for a schema that does not describe a record.
    """
    root, wanted = type_of(text), wanted_of(contract)
    if root.bare.kind != "record":
        raise UnusableError("is not a record schema")
    _require_room(root, wanted)
    end = {"type": "fixed", "name": f"{_ENVELOPE}_{AFTER}", "size": after}

    def enveloped(*, skips: bool) -> str:
        record = _Document(skips=skips).at(root, wanted, "p")
        branches = record if root.kind == "union" else [record]
        inner = [{"name": RECORD, "type": branches}, {"name": AFTER, "type": end}]
        return json.dumps({"type": "record", "name": _ENVELOPE, "fields": inner})

    per_byte = math.ceil(_of_collections(root, wanted))
    most = MOST_MEMORY // per_byte if per_byte else None
    first = b"" if root.kind == "union" else b"\x00"
    return Projection(root, wanted, enveloped(skips=False), enveloped(skips=True), most, first)


def _require_room(root: AvroType, wanted: Wanted) -> None:
    nodes = _nodes(root, wanted)
    if nodes > MOST_TYPES:
        many = f"{nodes:,}" if nodes < _COUNTED else f"more than {_COUNTED:,}"
        raise UnusableError(
            f"has {many} types in the contract's fields, counting each use of a name; at most "
            f"{MOST_TYPES:,} are allowed"
        )


def _nodes(type_: AvroType, wanted: Wanted) -> int:
    """Return the number of types in the parts that are read."""
    steps = _steps(type_, wanted)
    if steps is None:
        return type_.nodes
    return 1 + sum(_nodes(inner, one) for _, inner, one in steps)


def _steps(type_: AvroType, wanted: Wanted) -> list[tuple[int, AvroType, Wanted]] | None:
    """Return the needed fields of a record, with their positions, or None for a type that is read whole."""
    bare = type_.bare
    if bare.kind != "record" or wanted.is_read_whole or wanted.is_value:
        return None
    places = {name: position for position, name in enumerate(bare.names)}
    return [
        (places[name], bare.types[places[name]], one) for name, one in wanted.inner.items() if name in places
    ]


# Approximate bytes of memory for a value: Avro's object, Spark's object and the JSON.
_ITEM, _EMPTY, _SCALAR, _TEXT, _ENTRY, _ROW, _FIELD = 16, 250, 100, 250, 400, 200, 80
_PER_CHARACTER = 16  # per character of a field name, which JSON repeats


def _of_collections(type_: AvroType, wanted: Wanted) -> float:
    """Return the worst-case memory per encoded byte for the arrays and maps that are read."""
    steps = _steps(type_, wanted)
    if steps is None:
        return _of_collections_in(type_)
    return max((_of_collections(inner, one) for _, inner, one in steps), default=0)


def _of_collections_in(type_: AvroType) -> float:
    if type_.kind in _WITHIN:
        return _per_byte(type_)
    return max(map(_of_collections_in, type_.types), default=0)


def _per_byte(type_: AvroType) -> float:
    """Return the worst-case memory per encoded byte for a value of this type.

    An encoded record consists only of its fields, so the result for a record is the result for its worst
    field, plus the overhead of the record itself.
    """
    inner = max(map(_per_byte, type_.types), default=0.0)
    if type_.kind == "union" and len(type_.members()) <= 1:
        return max(_FIELD, inner)
    if type_.kind in ("record", "union"):
        names = sum(map(len, type_.names))
        fields = (_FIELD + _PER_CHARACTER) * len(type_.types)
        return inner + (_ROW + fields + _PER_CHARACTER * names) / max(1, type_.least)
    if type_.kind == "array":
        return max(_EMPTY, inner + _ITEM / type_.types[0].least)
    if type_.kind == "map":
        return max(_EMPTY, inner + _ENTRY)
    if type_.kind == "enum":
        return _TEXT + _PER_CHARACTER * max(map(len, type_.names), default=0)
    return (_TEXT if type_.kind in ("string", "bytes") else _SCALAR) / max(1, type_.least)


class _Document:
    """A builder for the writer or the reader schema.

    With `skips`, unneeded fields are left out, as in the reader schema. Each named type is defined only once.
    """

    def __init__(self, *, skips: bool) -> None:
        self._skips = skips
        self._written: set[str] = set()

    def at(self, type_: AvroType, wanted: Wanted, place: str) -> Any:
        """Return a type with only the needed parts.

        A record that is only partly read gets the name `place`, which is built from its position.
        """
        steps = _steps(type_, wanted)
        if steps is None:
            is_scalar = not type_.bare.types
            return self._kept(type_, is_whole=wanted.is_read_whole or not is_scalar)
        if type_.kind == "union":
            return [one.kind if one.kind == "null" else self.at(one, wanted, place) for one in type_.types]
        known = {position: (inner, one) for position, inner, one in steps}
        fields = []
        for position, inner in enumerate(type_.types):
            if position in known:
                found = self.at(*known[position], f"{place}_{position}")
            elif self._skips or not inner.least:
                continue
            else:
                found = self._skipped(inner)
            fields.append({"name": name_of(position), "type": found})
        return {"type": "record", "name": place, "fields": fields}

    def _kept(self, type_: AvroType, *, is_whole: bool) -> Any:
        """Return a type to read.

        With `is_whole`, times keep their logical types; otherwise, they are read as numbers.
        """
        if type_.kind == "fixed" and type_.size > MOST_FIXED:
            large = f"has a fixed type of {type_.size:,} bytes in the contract's fields"
            raise UnusableError(f"{large}; at most {MOST_FIXED:,} are allowed")
        found = self._made(
            type_, _WHOLE if is_whole else _VALUE, lambda one: self._kept(one, is_whole=is_whole)
        )
        if type_.kind == "fixed" and isinstance(found, str):
            return found
        if type_.logical == "decimal":
            decimal = {"logicalType": "decimal", "precision": type_.digits, "scale": type_.scale}
            return {"type": found, **decimal} if isinstance(found, str) else {**found, **decimal}
        return {"type": found, "logicalType": type_.logical} if is_whole and type_.is_time_of_spark else found

    def _skipped(self, type_: AvroType) -> Any:
        """Return the simplest type with the same encoding."""
        return self._made(type_, _SKIPPED, self._skipped)

    def _made(self, type_: AvroType, mark: str, inner: Callable[[AvroType], Any]) -> Any:
        """Return a type with its inner types.

        Named types are renamed to `mark` followed by their number.
        """
        if type_.kind == "union":
            return [inner(one) for one in type_.types]
        if type_.kind in ("array", "map"):
            return {"type": type_.kind, _WITHIN[type_.kind]: inner(type_.types[0])}
        if type_.kind not in ("record", "enum", "fixed"):
            return type_.kind
        name = f"{mark}{type_.number}"
        if name in self._written:
            return name
        self._written.add(name)
        return {"type": type_.kind, "name": name, **_parts(type_, inner, is_read=mark != _SKIPPED)}


def _parts(type_: AvroType, inner: Callable[[AvroType], Any], *, is_read: bool) -> dict[str, Any]:
    """Return the parts of a named type's definition.

    A type that is skipped needs neither symbols nor fields that take no bytes.
    """
    if type_.kind == "fixed":
        return {"size": type_.size}
    if type_.kind == "enum":
        return {"symbols": list(type_.names) if is_read else ["s"]}
    fields = [
        {"name": name_of(position), "type": inner(one)}
        for position, one in enumerate(type_.types)
        if is_read or one.least
    ]
    return {"fields": fields}
