"""The message types in a schema, as declared and as parsed.

A record is parsed with a copy of its type that contains only the contract's fields. The parser skips all
other fields, whatever they contain. Text is parsed as bytes, so invalid UTF-8 affects only its own field.
Declared default values are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from lakehouse.engine.formats.protobuf_kinds import kind_of, named

Tree = Mapping[str, "Tree"]
"""A tree of the names on paths: each name is mapped to the names below it."""
_NARROWED = "Narrowed"


class Types:
    """The message types in one schema, given as a file descriptor set whose last file is the schema's own."""

    def __init__(self, schema: bytes) -> None:
        files = FileDescriptorSet.FromString(schema)
        self._own = files.file[-1]
        self.declared, self.parsed = DescriptorPool(), DescriptorPool()
        self._files: dict[str, FileDescriptorProto] = {}
        for file in files.file:
            self.declared.Add(file)
            self._files[file.name] = file
            parsed = FileDescriptorProto()
            parsed.CopyFrom(file)
            for message in parsed.message_type:
                _read_text_as_bytes(message)
            for extension in parsed.extension:
                _read_as_bytes(extension)
            self.parsed.Add(parsed)
        self._copies = 0

    def message(self, index: Sequence[int]) -> Descriptor | None:
        """Return a message's declared type by its indexes (at least one), or None if it does not exist."""
        here, names = self._own.message_type, [self._own.package] if self._own.package else []
        for number in index:
            if not 0 <= number < len(here) or here[number].options.map_entry:
                return None
            names.append(here[number].name)
            here = here[number].nested_type
        return self.declared.FindMessageTypeByName(".".join(names))

    def narrowed(self, declared: Descriptor, tree: Tree) -> Descriptor:
        """Return a type that parses messages of a declared type, but only the fields in a tree."""
        return self.parsed.FindMessageTypeByName(self._narrowed(declared, tree))

    def _narrowed(self, declared: Descriptor, tree: Tree) -> str:
        """Add a type with the fields of a tree, and return its full name."""
        self._copies += 1
        source, whole = self._files[declared.file.name], DescriptorProto()
        declared.CopyToProto(whole)
        _read_text_as_bytes(whole)
        kept, imports = _kept(declared, tree), list(self._files)
        file = FileDescriptorProto(
            name=f"lakehouse/{self._copies}.proto", package=f"lakehouse_{self._copies}"
        )
        file.options.CopyFrom(source.options)
        if source.HasField("syntax"):
            file.syntax = source.syntax
        if source.HasField("edition"):
            file.edition = source.edition
        fields = [one for one in whole.field if one.number in kept]
        for one in fields:
            field, below = declared.fields_by_number[one.number], kept[one.number]
            if below and field.message_type is not None and kind_of(field) == "object":
                imports.append(f"lakehouse/{self._copies + 1}.proto")
                one.type_name = f".{self._narrowed(field.message_type, below)}"
        file.dependency.extend(imports)
        file.message_type.append(_with_fields(whole, fields))
        self.parsed.Add(file)
        return f"{file.package}.{_NARROWED}"


def tree_of(paths: Iterable[tuple[str, ...]]) -> Tree:
    """Return paths as a tree of names. A path includes everything below its last name."""
    ends, tree = set(paths), dict[str, Any]()
    for path in ends:
        if not any(path[:length] in ends for length in range(1, len(path))):
            here = tree
            for name in path:
                here = here.setdefault(name, {})
    return tree


def _kept(declared: Descriptor, tree: Tree) -> Mapping[int, Tree]:
    """Return the fields of a tree by number, plus all fields in the same oneofs.

    The fields of a oneof are kept together, because setting one of them clears the others.
    """
    kept: dict[int, Tree] = {}
    for name, below in tree.items():
        if (one := named(declared, name)) is not None:
            kept[one.number] = {} if one.number in kept else below
    for one in declared.fields:
        oneof = one.containing_oneof
        if oneof is not None and any(other.number in kept for other in oneof.fields):
            kept.setdefault(one.number, {})
    return kept


def _with_fields(whole: DescriptorProto, fields: list[FieldDescriptorProto]) -> DescriptorProto:
    """Return a message type with only these fields, and their oneofs."""
    oneofs = sorted({one.oneof_index for one in fields if one.HasField("oneof_index")})
    for one in fields:
        if one.HasField("oneof_index"):
            one.oneof_index = oneofs.index(one.oneof_index)
    decl = [whole.oneof_decl[number] for number in oneofs]
    return DescriptorProto(name=_NARROWED, field=fields, oneof_decl=decl, options=whole.options)


def _read_text_as_bytes(message: DescriptorProto) -> None:
    for one in message.field:
        if not (message.options.map_entry and one.name == "key"):  # bytes cannot be a map key
            _read_as_bytes(one)
    for one in message.extension:
        _read_as_bytes(one)
    for inner in message.nested_type:
        _read_text_as_bytes(inner)


def _read_as_bytes(one: FieldDescriptorProto) -> None:
    one.ClearField("default_value")
    if one.type == FieldDescriptorProto.TYPE_STRING:
        one.type = FieldDescriptorProto.TYPE_BYTES


def message_class(schema: bytes, index: list[int]) -> Any:
    """Return a message class by its indexes in a schema. Raises LookupError if there is no such class."""
    descriptor = Types(schema).message(index)
    if descriptor is None:
        raise LookupError(f"there is no message {index}")
    return GetMessageClass(descriptor)
