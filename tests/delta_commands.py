"""Delta commands as a user runs them, and the keys of the rows that they have touched.

A table is named as users name it, `gold.metrics_1m`, and a row by its key, timestamps in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

from delta import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from lakehouse.settings import Settings
from tests.pipeline import Row, path_of, rows_of
from tests.streams import STREAMS

COORDINATES = ("topic", "partition", "offset")
SOURCES = {source.table: source for stream in STREAMS for source in stream.sources}
GOLD = {f"gold.{table.name}": table for stream in STREAMS for table in stream.tables}
LANDED = tuple(f"{layer}.{name}" for layer in ("bronze", "silver") for name in SOURCES)

Key = tuple[Any, ...]

_NOT_COMPARED = {"m2", "sketch", "made_anew", "was_closed", "status", "closed_at"}
"""Columns that an audit does not compare, or not of every row: which depend on when a row came."""
_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
}


def keys_of(table: str) -> tuple[str, ...]:
    """Return the columns of a table's key."""
    return GOLD[table].keys if table in GOLD else COORDINATES


def key_of(table: str, row: Mapping[str, Any]) -> Key:
    """Return the key of a row."""
    return tuple(row[name] for name in keys_of(table))


def compared(table: str, rows: Iterable[Row]) -> dict[Key, dict[str, Any]]:
    """Return what an audit compares of rows, by their keys."""
    return {
        key_of(table, row): {
            name: _ordered(value) for name, value in row.items() if name not in _NOT_COMPARED
        }
        for row in rows
    }


def _ordered(value: Any) -> Any:
    """Return a value of a row; of a map, which has no order, its entries in one."""
    is_map = isinstance(value, list) and all(isinstance(entry, tuple) for entry in value)
    return sorted(value, key=lambda entry: entry[0]) if is_map else value


def update(
    spark: SparkSession, settings: Settings, table: str, rows: Iterable[Row], values: Mapping[str, Column]
) -> None:
    """UPDATE the rows of these keys."""
    _open(spark, settings, table).update(_among(spark, settings, table, rows), dict(values))


def delete(spark: SparkSession, settings: Settings, table: str, rows: Iterable[Row] | None) -> None:
    """DELETE the rows of these keys, all for none named."""
    condition = None if rows is None else _among(spark, settings, table, rows)
    _open(spark, settings, table).delete(condition)


def insert_like(
    spark: SparkSession, settings: Settings, table: str, row: Row, values: Mapping[str, Column]
) -> None:
    """INSERT a copy of a row in which some values are others."""
    rows = spark.read.format("delta").load(str(path_of(settings, table)))
    copies = rows.where(_among(spark, settings, table, [row])).withColumns(dict(values))
    copies.write.format("delta").mode("append").save(str(path_of(settings, table)))


def restore(spark: SparkSession, settings: Settings, table: str, version: int) -> set[Key]:
    """RESTORE the table to a version and return the keys of rows that came, went or changed by it."""
    before = compared(table, rows_of(settings, table))
    _open(spark, settings, table).restoreToVersion(version)
    after = compared(table, rows_of(settings, table))
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def optimize(spark: SparkSession, settings: Settings, table: str) -> None:
    """OPTIMIZE the table."""
    _open(spark, settings, table).optimize().executeCompaction()


def vacuum(spark: SparkSession, settings: Settings, table: str, *, everything: bool) -> None:
    """VACUUM the table: what is older than a week, or `everything` old, as if that week had passed."""
    with _vacuuming(spark):
        _open(spark, settings, table).vacuum(0 if everything else None)


@contextmanager
def _vacuuming(spark: SparkSession) -> Iterator[None]:
    """Let VACUUM remove young files, and list the few there are in one task instead of ten thousand."""
    for name, value in _VACUUM.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in _VACUUM:
            spark.conf.unset(name)


def _open(spark: SparkSession, settings: Settings, table: str) -> Any:
    return DeltaTable.forPath(spark, str(path_of(settings, table)))


def _among(spark: SparkSession, settings: Settings, table: str, rows: Iterable[Row]) -> Column:
    schema = spark.read.format("delta").load(str(path_of(settings, table))).schema
    names = keys_of(table)
    each = (
        reduce(Column.__and__, (_is(schema, name, value) for name, value in zip(names, key, strict=True)))
        for key in (key_of(table, row) for row in rows)
    )
    return reduce(Column.__or__, each, F.lit(False))


def _is(schema: StructType, name: str, value: Any) -> Column:
    column = F.col(name)
    timed = isinstance(schema[name].dataType, TimestampType)
    return (F.unix_micros(column) if timed else column).eqNullSafe(F.lit(value))
