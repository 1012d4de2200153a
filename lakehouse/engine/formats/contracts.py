"""Generate schemas and ODCS data contracts from a stream's contract.

Optional fields are nullable. The event time is nullable too, because Kafka's timestamp can replace it. In
Avro and Protobuf, a JSON field becomes a string containing JSON. Protobuf has no decimal type, so a DECIMAL
becomes a string of digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import printable
from lakehouse.storage.kafka.schema_registry import Registered
from lakehouse.streams.contract import MOST_PLACES, Contract, Field, FieldType
from lakehouse.streams.definition import Source

_DIGITS = 38
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AVRO_TIMES = {"ms": "timestamp-millis", "us": "timestamp-micros"}
_AVRO = {
    FieldType.STRING: "string",
    FieldType.LONG: "long",
    FieldType.DOUBLE: "double",
    FieldType.BOOLEAN: "boolean",
    FieldType.JSON: "string",
}
_PROTOBUF = _AVRO | {FieldType.LONG: "int64", FieldType.BOOLEAN: "bool", FieldType.DECIMAL: "string"}
_JSON: dict[FieldType, dict[str, Any]] = {
    FieldType.STRING: {"type": "string"},
    FieldType.LONG: {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    FieldType.DOUBLE: {"type": "number"},
    FieldType.DECIMAL: {"type": "number"},
    FieldType.BOOLEAN: {"type": "boolean"},
    FieldType.JSON: {},
}
_JSON_TIME = {"type": ["integer", "string", "null"]}


@dataclass(frozen=True)
class Leaf:
    """A field in a schema. `field` is None for an event time that is not among the contract's fields."""

    field: Field | None
    required: bool


Tree = Mapping[str, "Leaf | Tree"]


def schema_of_contract(source: Source, format_: str) -> Registered:
    """Return a source's contract as a schema in the given format (for json, a JSON Schema).

    Raises SettingsError for a field name that the format does not allow.
    """
    if format_ == "avro":
        return Registered("AVRO", json.dumps(_avro(source.contract, name_of(source)), indent=2))
    if format_ == "protobuf":
        return Registered("PROTOBUF", _protobuf(source.contract, name_of(source)))
    return Registered("JSON", json.dumps(_json_schema(source.contract, name_of(source)), indent=2))


def subject_of(topic: str) -> str:
    """Return the registry subject for a topic's values."""
    return f"{topic}-value"


def name_of(source: Source) -> str:
    """Return the record type's name for a source: metrics_events becomes MetricsEvents."""
    return "".join(word.capitalize() for word in re.split(r"[^A-Za-z0-9]+", source.table))


def tree_of(contract: Contract) -> Tree:
    """Return a contract's fields, with objects as nested trees.

    Raises SettingsError if a name is used for both a field and an object, which no schema can express.
    """
    leaves = {field.path: Leaf(field, field.required) for field in contract.fields}
    leaves.setdefault(contract.event_time_path, Leaf(None, required=False))
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
            if isinstance(inner, Leaf):
                raise _both(path)
        if path[-1] in inner:
            raise _both(path)
        inner[path[-1]] = leaf
    return tree


def _both(path: Sequence[str]) -> SettingsError:
    return SettingsError(
        f"{printable('.'.join(path))}: the contract uses this name for both a field and an object with "
        "fields, which no schema can express; remove one of them"
    )


def is_required(node: Leaf | Tree) -> bool:
    """Return whether a field is required; an object is required if any field inside it is."""
    return node.required if isinstance(node, Leaf) else any(map(is_required, node.values()))


def _avro(contract: Contract, name: str) -> dict[str, Any]:
    taken = {name}  # record names must be unique in the whole schema

    def record(tree: Tree, name: str) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [one(*item) for item in tree.items()]}

    def one(key: str, node: Leaf | Tree) -> dict[str, Any]:
        _require_name(key, "Avro")
        type_ = leaf(node) if isinstance(node, Leaf) else record(node, _type_name(key, taken))
        if is_required(node):
            return {"name": key, "type": type_}
        return {"name": key, "type": ["null", type_], "default": None}

    def leaf(node: Leaf) -> Any:
        if node.field is None:
            logical = _AVRO_TIMES.get(contract.event_time_unit)
            return {"type": "long", "logicalType": logical} if logical else "long"
        if node.field.type is FieldType.DECIMAL:
            places = MOST_PLACES if node.field.scale is None else node.field.scale
            return {"type": "bytes", "logicalType": "decimal", "precision": _DIGITS, "scale": places}
        return _AVRO[node.field.type]

    return record(tree_of(contract), name)


def _json_schema(contract: Contract, name: str) -> dict[str, Any]:
    def of_object(tree: Tree) -> dict[str, Any]:
        required = [key for key, node in tree.items() if is_required(node)]
        return {
            "type": "object",
            "properties": {key: one(node) for key, node in tree.items()},
            **({"required": required} if required else {}),
        }

    def one(node: Leaf | Tree) -> dict[str, Any]:
        if not isinstance(node, Leaf):
            return of_object(node)
        if node.field is None:
            return _JSON_TIME
        found = dict(_JSON[node.field.type])
        if node.field.accepts_numbers:
            found["type"] = ["string", "integer"]
        if node.field.accepts_text:
            found["type"] = [found["type"], "string"]
        if node.required and node.field.type is FieldType.STRING:
            found["minLength"] = 1
        if not node.required and "type" in found:
            types = found["type"] if isinstance(found["type"], list) else [found["type"]]
            found["type"] = [*types, "null"]
        return found

    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": name,
        **of_object(tree_of(contract)),
    }


def _protobuf(contract: Contract, name: str) -> str:
    def message(tree: Tree, name: str, indent: str) -> Iterator[str]:
        yield f"{indent}message {name} {{"
        _require_json_names(tree)
        taken = {name, *tree}  # messages share a namespace with the fields next to them
        for number, (key, node) in enumerate(tree.items(), start=1):
            _require_name(key, "Protobuf")
            if isinstance(node, Leaf):
                type_ = "int64" if node.field is None else _PROTOBUF[node.field.type]
            else:
                type_ = _type_name(key, taken)
                yield from message(node, type_, indent + "  ")
            yield f"{indent}  optional {type_} {key} = {number};"
        yield f"{indent}}}"

    return "\n".join(['syntax = "proto3";', "", *message(tree_of(contract), name, ""), ""])


def _require_json_names(names: Iterable[str]) -> None:
    """Raise SettingsError if two fields have the same JSON name in Protobuf."""
    found: dict[str, str] = {}
    for name in names:
        in_json = re.sub(r"_+(.?)", lambda match: match[1].upper(), name)
        if in_json in found:
            raise SettingsError(
                f"Protobuf cannot distinguish {found[in_json]} from {name}: both are {in_json} in JSON. Use "
                "the format json or json-schema instead"
            )
        found[in_json] = name


def _type_name(name: str, taken: set[str]) -> str:
    """Return an unused name for an object's type, and mark the name as used."""
    found, number = name.capitalize(), 2
    while found in taken:
        found, number = f"{name.capitalize()}_{number}", number + 1
    taken.add(found)
    return found


def _require_name(name: str, of: str) -> None:
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{of} does not allow the field name {name!r}, only letters, digits and _; json and "
            "json-schema allow any name"
        )


_VERSION = "v3.0.2"
_LOGICAL = {
    FieldType.STRING: "string",
    FieldType.LONG: "integer",
    FieldType.DOUBLE: "number",
    FieldType.DECIMAL: "number",
    FieldType.BOOLEAN: "boolean",
    FieldType.JSON: "object",
}


def data_contract(source: Source, topic: str) -> dict[str, Any]:
    """Return the data contract for a topic's records."""
    return {
        "apiVersion": _VERSION,
        "kind": "DataContract",
        "id": f"urn:lakehouse:{source.table}",
        "name": source.table,
        "version": "1.0.0",
        "status": "active",
        "schema": [
            {
                "name": name_of(source),
                "physicalName": topic,
                "physicalType": "topic",
                "logicalType": "object",
                "properties": _properties(source, tree_of(source.contract)),
            }
        ],
        "slaProperties": [{"property": "latency", "value": source.allowed_lateness_s, "unit": "s"}],
    }


def _properties(source: Source, tree: Tree) -> list[dict[str, Any]]:
    return [
        {"name": name, "required": is_required(node), **_type(source, node)} for name, node in tree.items()
    ]


def _type(source: Source, node: Leaf | Tree) -> dict[str, Any]:
    if not isinstance(node, Leaf):
        return {"logicalType": "object", "properties": _properties(source, node)}
    contract = source.contract
    if node.field is None:
        unit = f"epoch {contract.event_time_unit}"
        return {"logicalType": "integer", "physicalType": unit, "description": "The event time."}
    found: dict[str, Any] = {"logicalType": _LOGICAL[node.field.type], "physicalType": node.field.type.value}
    if node.required and node.field.type is FieldType.STRING:
        found["logicalTypeOptions"] = {"minLength": 1}
    return found
