"""Delta commands as users run them, and the keys of the rows that they change.

Tables are named as users name them, for example `gold.metrics_1m`. Rows are identified by their keys, with
timestamps in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from delta import DeltaTable
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.support.outputs import KEYS
from tests.support.pipeline import Row, path_of, rows_of
from tests.support.streams import STREAMS

COORDINATES = ("topic", "partition", "offset")
SOURCES = {source.table: source for stream in STREAMS for source in stream.sources}

Key = tuple[Any, ...]

_NOT_COMPARED = {"m2", "sketch", "made_anew", "was_closed", "status", "closed_at"}
"""Columns that an audit compares only for some rows or not at all, because they depend on arrival times."""
_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
}


def keys_of(table: str) -> tuple[str, ...]:
    """Return the columns of a table's key."""
    layer, _, name = table.partition(".")
    return KEYS[name] if layer == "gold" else COORDINATES


def key_of(table: str, row: Mapping[str, Any]) -> Key:
    """Return the key of a row."""
    return tuple(row[name] for name in keys_of(table))


def compared(table: str, rows: Iterable[Row]) -> dict[Key, dict[str, Any]]:
    """Return the parts of rows that an audit compares, by key."""
    return {
        key_of(table, row): {
            name: _ordered(value) for name, value in row.items() if name not in _NOT_COMPARED
        }
        for row in rows
    }


def _ordered(value: Any) -> Any:
    """Return a row's value, with the entries of a map sorted, because maps have no order."""
    is_map = isinstance(value, list) and all(isinstance(entry, tuple) for entry in value)
    return sorted(value, key=lambda entry: entry[0]) if is_map else value


def restore(spark: SparkSession, settings: Settings, table: str, version: int) -> set[Key]:
    """RESTORE the table to a version, and return the keys of the rows that were added, removed or changed."""
    before = compared(table, rows_of(settings, table))
    _open(spark, settings, table).restoreToVersion(version)
    after = compared(table, rows_of(settings, table))
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def optimize(spark: SparkSession, settings: Settings, table: str) -> None:
    """OPTIMIZE the table."""
    _open(spark, settings, table).optimize().executeCompaction()


def vacuum(spark: SparkSession, settings: Settings, table: str, *, everything: bool) -> None:
    """VACUUM the table's files that are older than a week or, with `everything`, of any age."""
    with _vacuuming(spark):
        _open(spark, settings, table).vacuum(0 if everything else None)


@contextmanager
def _vacuuming(spark: SparkSession) -> Iterator[None]:
    """Let VACUUM remove recent files, and list them in one task instead of ten thousand."""
    for name, value in _VACUUM.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in _VACUUM:
            spark.conf.unset(name)


def _open(spark: SparkSession, settings: Settings, table: str) -> Any:
    return DeltaTable.forPath(spark, str(path_of(settings, table)))
