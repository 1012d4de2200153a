"""A contract as a data contract of the Open Data Contract Standard (Bitol), version 3."""

from __future__ import annotations

from typing import Any

from lakehouse.engine.formats.contracts import Leaf, Tree, is_required, name_of, tree_of
from lakehouse.streams.contract import FieldType
from lakehouse.streams.definition import Source

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
    """Return the data contract of a topic's records."""
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
