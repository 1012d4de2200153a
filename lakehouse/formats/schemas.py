"""Schemas by the ids in records: asked from the registry once, then kept.

An id always means the same schema. So each schema is kept in this process and in the lake, in
`<lake>/_lakehouse_schemas/<id>.json`, where a rebuild, a replay and an audit find it without the registry.
Missing schemas are not remembered: they may be registered later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from lakehouse.kafka.registry_access import RegistryAccess
from lakehouse.kafka.schema_registry import Registered, schema_of
from lakehouse.spark import storage

DIRECTORY = "_lakehouse_schemas"
Schemas = Mapping[int, Registered | None]
"""By the ids: null for one that the registry does not have."""

_known: dict[tuple[str, int], Registered] = {}


def schemas_of(spark: SparkSession, lake: str | None, access: RegistryAccess, ids: Iterable[int]) -> Schemas:
    """Return the schemas of these ids; without a lake, the registry and this process alone are asked.

    Raises RegistryError if a schema is needed and the registry does not answer.
    """
    return {one: _schema_of(spark, lake, access, one) for one in ids}


def _schema_of(spark: SparkSession, lake: str | None, access: RegistryAccess, one: int) -> Registered | None:
    key = (lake or access.url, one)
    if key in _known:
        return _known[key]
    path = f"{lake}/{DIRECTORY}/{one}.json"
    if lake is not None and storage.exists(spark, path):
        found: Registered | None = Registered(**json.loads(storage.read_text(spark, path)))
    else:
        found = schema_of(access, one)
        if found is not None and lake is not None:
            storage.write_text(spark, path, json.dumps(vars(found)))
    if found is not None:
        _known[key] = found
    return found
