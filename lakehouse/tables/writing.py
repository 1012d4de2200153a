"""Writes to a table: appends and merges, each at most once, and again where another writer has come first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TypeVar

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
)
from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from lakehouse import schema_changes
from lakehouse.stream import DELETED
from lakehouse.tables.log import is_written, version_of
from lakehouse.tables.reading import read
from lakehouse.tables.specs import Span, Transaction

T = TypeVar("T")

_ATTEMPTS = 5


class _OvertakenError(Exception):
    """A table has moved on since the rows that are to be written were made from it."""


# In Java they have an ancestor in common, in Python they have none.
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
    _OvertakenError,
)


def append(rows: DataFrame, path: str, transaction: Transaction) -> None:
    """Append the rows once, by column names: a second call with the same transaction does nothing."""
    again_on_conflict(lambda: _append(rows, path, transaction))


def append_counted(rows: DataFrame, path: str, transaction: Transaction) -> int:
    """Append the rows once, as `append` does, and return how many: 0 where they had been written before."""

    def write() -> int:
        if is_written(rows.sparkSession, path, transaction):
            return 0  # Delta would skip the write without reading a row, and the observation would never come
        observation = Observation()
        _append(rows.observe(observation, F.count(F.lit(1)).alias("rows")), path, transaction)
        return int(observation.get["rows"])

    return again_on_conflict(write)


def _append(rows: DataFrame, path: str, transaction: Transaction) -> None:
    (
        rows.write.format("delta")
        .mode("append")
        .option("txnAppId", transaction.application)
        .option("txnVersion", transaction.version)
        .save(path)
    )


def upsert(
    rows: DataFrame,
    path: str,
    keys: Sequence[str],
    span: Span | None,
    transaction: Transaction | None,
    *,
    version: int | None = None,
) -> None:
    """Merge the rows by key once: matched rows are replaced, others inserted; those marked DELETED leave.

    `rows` has one row a key and is read twice, so it should be persisted; `span` is where they lie, which
    spares files. A second call with the same transaction does nothing; without one it does the same again.
    Must be called with rows of the micro-batch's own session, because the transaction travels as that
    session's configuration. It fails where another writer comes first, or has come since the `version` that
    the rows were made from: see `again_on_conflict`.
    """
    spark = rows.sparkSession
    within = F.lit(True)  # noqa: FBT003
    if span is not None:
        within = F.col(f"t.{span.column}").between(F.lit(span.first), F.lit(span.last))
    merge = _put(rows, path, keys, within)
    if version is not None and version_of(spark, path) != version:
        raise _OvertakenError
    with _in_transaction(spark, transaction):
        merge.execute()


def insert_missing(rows: DataFrame, path: str, keys: Sequence[str], within: Column) -> int:
    """Insert the rows whose key the table does not have and return how many; a rerun inserts none.

    Of several that insert at once one comes first, and the others look again. `within` is a condition on the
    table's row `t` that holds for all that have one of the keys; it spares files. `rows` has one row a key
    and should be persisted.
    """
    merge = _merge_into(rows, path, keys, within).whenNotMatchedInsertAll()
    return _affected(merge, "num_inserted_rows")


def amend(
    rows: DataFrame,
    path: str,
    keys: Sequence[str],
    where: Column,
    values: Mapping[str, Column],
    *,
    within: Column,
) -> int:
    """Set `values` in the table's rows that have the key of one of `rows`, and return how many.

    `where` and `values` are over the table's row `t` and the other one `s`. Rows for which `where` is not
    true stay as they are; it is for the caller to see that a rerun finds none. `within` is as in
    `insert_missing`.
    """
    merge = _merge_into(rows, path, keys, within).whenMatchedUpdate(where, dict(values))
    return _affected(merge, "num_updated_rows")


def replace(rows: DataFrame, path: str, keys: Sequence[str], *, within: Column) -> int:
    """Upsert the rows by key in one commit and return how many; those marked DELETED leave.

    `within` is as in `insert_missing`.
    """
    return _affected(_put(rows, path, keys, within), "num_affected_rows")


def _put(rows: DataFrame, path: str, keys: Sequence[str], within: Column) -> DeltaMergeBuilder:
    columns: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in rows.columns if name != DELETED}
    merge, stays = _merge_into(rows, path, keys, within), F.lit(True)  # noqa: FBT003
    if DELETED in rows.columns:
        stays = ~F.coalesce(f"s.{DELETED}", F.lit(False))  # noqa: FBT003
        merge = merge.whenMatchedDelete(~stays)
    return merge.whenMatchedUpdate(set=columns).whenNotMatchedInsert(stays, columns)


def _merge_into(rows: DataFrame, path: str, keys: Sequence[str], within: Column) -> DeltaMergeBuilder:
    same = reduce(Column.__and__, (F.col(f"t.{key}") == F.col(f"s.{key}") for key in keys))
    table = DeltaTable.forPath(rows.sparkSession, path).alias("t")
    return table.merge(rows.alias("s"), same & within)


def _affected(merge: DeltaMergeBuilder, metric: str) -> int:
    found: list[DataFrame] = []
    again_on_conflict(lambda: found.append(merge.execute()))
    return int(found[-1].select(metric).collect()[0][0])


def update(spark: SparkSession, path: str, where: Column, values: Mapping[str, Column]) -> None:
    """Set columns in the rows that `where` selects; it is for the caller to see that a rerun finds none."""
    table = DeltaTable.forPath(spark, path)
    again_on_conflict(lambda: table.update(where, dict(values)))


def clear(spark: SparkSession, path: str, columns: Sequence[str], where: Column) -> int:
    """Set columns to null in the rows that `where` selects and return how many; a rerun finds none."""
    spent = where & F.col(columns[0]).isNotNull()
    rows = read(spark, path).where(spent).count()
    if rows:
        update(spark, path, spent, dict.fromkeys(columns, F.lit(None)))
    return rows


def set_property(spark: SparkSession, path: str, name: str, value: str | None) -> None:
    """Give a property of the table a value, null to take it away; writes that are under way conflict."""
    unset = f"UNSET TBLPROPERTIES IF EXISTS ('{name}')"
    change = unset if value is None else f"SET TBLPROPERTIES ('{name}' = '{value}')"
    again_on_conflict(lambda: schema_changes.alter(spark, path, change))


def again_on_conflict(write: Callable[[], T]) -> T:
    """Write, and again where another writer has come first: a layer, maintenance and a rebuild share a table.

    `write` must look at the table anew each time.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return write()
        except _CONFLICTS:
            continue
    return write()


@contextlib.contextmanager
def _in_transaction(spark: SparkSession, transaction: Transaction | None) -> Iterator[None]:
    if transaction is None:
        yield
        return
    spark.conf.set("spark.databricks.delta.write.txnAppId", transaction.application)
    spark.conf.set("spark.databricks.delta.write.txnVersion", str(transaction.version))
    try:
        yield
    finally:
        spark.conf.unset("spark.databricks.delta.write.txnAppId")
        spark.conf.unset("spark.databricks.delta.write.txnVersion")
