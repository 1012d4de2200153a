"""Select the rows to export from a table's change feed, and turn them into messages in sending order.

Rows can take far more space in memory than in files, so their total size is measured before the driver
collects any. A few rows are collected at once, and many rows in parts of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, reduce
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from lakehouse.sinks.change import Change
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import streamed
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import by_reference
from lakehouse.storage.spark.kept import Kept
from lakehouse.streams.definition import GoldTable, MergedTable
from lakehouse.streams.messages.key_names import escaped
from lakehouse.streams.messages.layout import GROUP_SEPARATORS

_PART_BYTES = 16 << 20
_ORDER = "_order"
_KIND = "_change_type"
Own = Mapping[str, Column]
"""Columns with the row in the format of each sink that does not store the message, keyed by sink name."""
NO_OWN: Own = MappingProxyType({})


@dataclass(frozen=True)
class Outgoing:
    """Rows with the fields of a Change, their count, and the total size of their messages and keys."""

    _rows: DataFrame
    count: int
    size_bytes: int

    def all_at_once(self) -> list[Change]:
        """Return the rows in sending order."""
        return _collected(self._rows)

    def in_parts(self) -> Iterator[Change]:
        """Yield the rows in sending order. The driver holds one part at a time."""
        return self._in_parts(F.col(_ORDER))

    def latest_first(self) -> Iterator[Change]:
        """Yield existing rows, latest first, and then deleted rows. The driver holds one part at a time."""
        return self._in_parts(F.struct(F.col("value").isNull(), -F.col("order"), _ORDER))

    def _in_parts(self, order: Column) -> Iterator[Change]:
        parts = 1 + self.size_bytes // _PART_BYTES  # each part is a Spark job
        ordered = self._rows.withColumn(_ORDER, order).repartitionByRange(parts, _ORDER)
        rows = ordered.sortWithinPartitions(_ORDER).drop(_ORDER)
        return map(_change, streamed(rows))


def within(newest: DataFrame, changes: Columns | Kept, *, rows: int, size_bytes: int) -> list[Change] | None:
    """Return the rows of `newest` as changes in sending order, or None if they exceed a limit.

    `changes` comes from `changes_of`. This function runs a single Spark job, and the rows must fit in one
    task. The driver collects at most one row beyond the limits.
    """
    leaving = _before().added_to(changes.of(newest))
    found = _collected(leaving.where(F.col("_before") <= size_bytes).drop("_before"), most=rows + 1)
    sizes = (len(f"{one.key}{one.value or ''}{one.row_key}".encode()) for one in found)
    return found if len(found) <= rows and sum(sizes) <= size_bytes else None


@contextmanager
def outgoing(newest: DataFrame, changes: Columns | Kept) -> Iterator[Outgoing]:
    """Convert rows with `changes` (from `changes_of`), and persist the result during the block."""
    rows = changes.of(newest).persist()
    try:
        found = rows.agg(F.count(F.lit(1)), F.sum(reduce(Column.__add__, _sizes()))).first()
        count, size = (0, None) if found is None else found
        yield Outgoing(rows, count, size or 0)
    finally:
        rows.unpersist()


def changes_of(table: MergedTable, own: Own = NO_OWN) -> Columns:
    """Return the columns that turn the table's feed rows into Change rows with a sending order.

    Rows are sent by version, then by key, but each commit's deletes are sent first. The last message for a
    key therefore belongs to an existing row, if there is one. A deleted row gets the tombstone key.
    """
    export, view = table.export, table.export.redis
    deleted = F.col(_KIND) == "delete"
    fields = {
        "key": F.when(deleted, export.tombstone_key()).otherwise(export.key()),
        "partition_by": (export.partition_by or export.key)(),
        "value": F.when(~deleted, message_of(table)),
        "version": F.col("_commit_version"),
        "row_key": view.row_key(),
        "group": group_of(table),
        "member": view.member(),
        "order": view.order(),
        "has_message": ~deleted | F.lit(export.identity is not None),
    }
    if own:
        fields["own"] = F.struct(*(column.alias(name) for name, column in own.items()))
    fields[_ORDER] = F.struct("_commit_version", (~deleted).alias("_kept"), *table.keys)
    return Columns(fields)


@cache
def _before() -> Columns:
    """Return a column with the total size of the rows sent before each row."""
    before = Window.partitionBy(F.lit(1)).orderBy(_ORDER).rowsBetween(Window.unboundedPreceding, -1)
    size = reduce(Column.__add__, _sizes())
    return Columns({"_before": F.coalesce(F.sum(size).over(before), F.lit(0))})


def _sizes() -> list[Column]:
    return [F.coalesce(F.octet_length(text), F.lit(0)) for text in ("key", "value", "row_key")]


def _collected(leaving: DataFrame, most: int | None = None) -> list[Change]:
    ordered = leaving.orderBy(_ORDER).drop(_ORDER)
    return list(map(_change, (ordered if most is None else ordered.limit(most)).collect()))


def _change(row: Row) -> Change:
    fields = row.asDict()
    if "own" in fields:
        fields["own"] = fields["own"].asDict()
    return Change(**fields)


def filter_newest(feed: DataFrame, table: MergedTable) -> DataFrame:
    """Keep the last change to each row in the feed: the row's new state, or its deletion.

    Rows are identified by the table's keys. An UPDATE that changes a key therefore counts as a delete of the
    old row, because the old row's preimage has no postimage in the commit. Maintenance changes that only
    clear fold state are ignored.
    """
    state = table.state.columns if isinstance(table, GoldTable) and table.state is not None else ()
    compared = tuple(name for name in table.schema.names if name not in (*table.keys, *state))
    images = _images(table.keys, compared, state[0] if state else None)
    if state:
        feed = images.beside.added_to(feed).where(images.counts)
    last = images.position.added_to(feed).where(images.is_last)
    return images.kind.added_to(last)


@dataclass(frozen=True)
class _Images:
    """Columns that compare the images of a row in a change feed, built once per table.

    beside    the next older change's preimage, and the next newer change's version
    counts    whether a change does more than clear fold state, and is not the preimage of an update
    position  the change's number among the row's changes, counted from the newest
    is_last   whether the change is the row's newest
    kind      the kind of change: a preimage without a postimage counts as a delete
    """

    beside: Columns
    counts: Column
    position: Columns
    is_last: Column
    kind: Columns


@cache
def _images(keys: tuple[str, ...], compared: tuple[str, ...], state: str | None) -> _Images:
    kind, version = F.col(_KIND), F.col("_commit_version")
    is_gone = kind.isin("delete", "update_preimage")
    newest = Window.partitionBy(*keys).orderBy(F.desc("_commit_version"), is_gone)
    has_state = F.lit(True) if state is None else F.col(state).isNotNull()
    image = F.struct("_commit_version", *compared)
    before = F.lead(F.when((kind == "update_preimage") & has_state, image)).over(newest)
    clears = (kind == "update_postimage") & ~has_state & F.col("_before").eqNullSafe(image)
    is_paired = (kind == "update_preimage") & F.col("_above").eqNullSafe(version)
    return _Images(
        Columns({"_before": before, "_above": F.lag("_commit_version").over(newest)}),
        ~clears & ~is_paired,
        Columns({"_position": F.row_number().over(newest)}),
        F.col("_position") == 1,
        Columns({_KIND: F.when(is_gone, "delete").otherwise(kind)}),
    )


def newest_since(spark: SparkSession, path: str, table: MergedTable, since: datetime) -> DataFrame:
    """Return the latest change to every row that has changed at or after `since` (UTC).

    The frame also contains _change_type, _commit_version and _commit_timestamp.
    """
    return filter_newest(tables.read_changes_since(spark, path, since), table)


def as_inserted(rows: DataFrame, version: int, at: datetime) -> DataFrame:
    """Return the table's rows as changes, as if a single commit had inserted them all at this time (UTC)."""
    by = F.col(rows.columns[0])
    return rows.withColumns(
        {
            _KIND: F.lit("insert"),
            "_commit_version": by_reference(F.lit(version).cast("long"), by),
            "_commit_timestamp": by_reference(F.lit(at), by),
        }
    )


def leaves(table: MergedTable) -> Column:
    """Return the condition under which a change to the table is exported."""
    deleted = F.col(_KIND) == "delete"
    return F.when(deleted, table.export.tombstone_when()).otherwise(table.export.export_when())


def message_of(table: MergedTable) -> Column:
    """Return a column with a table row's message, as JSON."""
    return F.to_json(table.export.value(), {"ignoreNullFields": "false"})


def group_of(table: MergedTable) -> Column:
    """Return a column with a row's group name in Redis. It is escaped, because it is part of Redis keys."""
    return escaped(table.export.redis.group(), GROUP_SEPARATORS)
