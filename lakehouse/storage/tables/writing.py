"""Append rows to tables and merge rows into them, at most once. A write is retried after a conflict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from lakehouse.common.errors import TableError
from lakehouse.storage.spark.execution import (
    Amount,
    amount_of,
    broadcast,
    executing_for,
    gathered,
    reading_file_by_file,
)
from lakehouse.storage.tables.commits import (
    CHANGE_TYPE,
    FILE,
    Candidates,
    Commit,
    amended_rows,
    begin,
    changed_rows,
)
from lakehouse.storage.tables.pruning import Near
from lakehouse.storage.tables.specs import DELETED, Move, Why

T = TypeVar("T")

_ATTEMPTS = 12
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0  # half a minute in total
_REWRITTEN_BYTES = 128 << 10  # rewriting less than this is faster than searching it
_SO_FEW_STAY = 4_000  # rows; rewriting so few each time costs less than extra files
_GIVEN = "_given"
_NONE: Mapping[str, str] = {}


# These errors have a common base class in Java, but not in Python.
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)


@dataclass(frozen=True)
class Written:
    """The result of a write: the number of rows, and the commit's version (None if nothing was committed)."""

    rows: int
    version: int | None


def append(
    rows: DataFrame, path: str, moves: Sequence[Move] = (), *, settings: Mapping[str, str] = _NONE
) -> Written:
    """Append the rows, matched by column name, and record the moves, in one commit.

    Columns that are missing from the rows are null. Raises TableError for a column that the table does not
    have. Raises PositionError, before any row is read, if the table's positions or settings are not as
    expected.
    """

    def once() -> Written:
        commit = begin(rows.sparkSession, path)
        commit.expect_settings(settings)
        commit.expect(moves)
        return add(rows, commit, moves)

    return retry_on_conflict(once)


def add(rows: DataFrame, commit: Commit, moves: Sequence[Move] = ()) -> Written:
    """Add the rows, matched by column name, record the moves, and publish the commit.

    The commit fails if another writer has changed the data that it read; see `retry_on_conflict`.
    """
    written = commit.write(_as_in(commit.schema, rows, commit.path))
    return Written(written, commit.finish(moves))


def note(
    spark: SparkSession, path: str, moves: Sequence[Move], *, settings: Mapping[str, str] = _NONE
) -> Written:
    """Record the moves in a commit without rows. Raises PositionError as `append` does."""

    def once() -> Written:
        commit = begin(spark, path)
        commit.expect_settings(settings)
        commit.expect(moves)
        return Written(0, commit.finish(moves))

    return retry_on_conflict(once)


def upsert(
    rows: DataFrame,
    commit: Commit,
    near: Candidates,
    keys: Sequence[str],
    moves: Sequence[Move] = (),
    *,
    count: int | None = None,
    why: Why | None = None,
) -> Written:
    """Upsert the rows by key, record the moves, and publish the commit.

    `rows` has one row per key, and should be persisted because it is read twice. Rows marked DELETED are
    deleted. `count` is the number of rows; None means that they must be counted. `near` contains the files
    that might contain one of the keys. If there are no rows, nothing is committed. See `Commit.finish` for
    `why`. Raises PositionError as `append` does. The commit fails if another writer has changed the data that
    it read; see `retry_on_conflict`.
    """
    commit.expect(moves)
    changed = rows.count() if count is None else count
    if not changed:
        return Written(0, None)
    amount = amount_of(rows=max(changed, near.rows))
    with executing_for(rows.sparkSession, amount):
        _put_in_place(gathered(rows, amount), changed, commit, near, keys)
        return Written(changed, commit.finish(moves, why))


def _put_in_place(rows: DataFrame, count: int, commit: Commit, near: Candidates, keys: Sequence[str]) -> None:
    amount = amount_of(rows=max(count, near.rows))
    names = _files_with(rows, commit, near, keys, amount)
    gone = F.coalesce(DELETED, F.lit(False)) if DELETED in rows.columns else F.lit(False)
    new = _as_in(commit.schema, rows, commit.path)
    if not names:
        commit.write(new.where(~gone).drop(DELETED))
        return
    large = [name for name in names if near.rows_by_name[name] > _SO_FEW_STAY]
    stay = near.rows_of(large) - count > _SO_FEW_STAY and near.size_bytes > _REWRITTEN_BYTES
    whole = [name for name in names if not stay or name not in large]
    old, written = commit.rows(near, whole).drop(FILE), near.rows_of(whole)
    if stay:
        # Later changes to these rows then rewrite only these rows, not the other rows in a large file.
        changing = broadcast(new.select(*keys), amount_of(rows=count))
        around = commit.rows(near, large).drop(FILE)
        with reading_file_by_file(rows.sparkSession):  # every later merge would read files with mixed rows
            commit.write(around.join(changing, list(keys), "left_anti").coalesce(len(large)))
        hit = around.join(changing, list(keys), "left_semi")
        old, written = old.unionByName(hit) if whole else hit, written + count
    old = gathered(old, amount)
    commit.write(gathered(changed_rows(old, new, keys, gone), amount_of(rows=written)))
    commit.remove(near, names)


def _files_with(
    rows: DataFrame, commit: Commit, near: Candidates, keys: Sequence[str], amount: Amount
) -> list[str]:
    """Return the names of files in `near` that contain any of the keys, or all names if `near` is small."""
    if near.size_bytes <= _REWRITTEN_BYTES:
        return list(near.files)
    given = rows.select(*keys)
    found = commit.rows(near).join(broadcast(given, amount), list(keys), "left_semi")
    return [row[FILE] for row in found.select(FILE).distinct().collect()]


def _as_in(schema: StructType, rows: DataFrame, path: str) -> DataFrame:
    """Cast the rows' columns to the types that the table declares."""
    types = {column.name: column.dataType for column in schema.add(DELETED, "boolean")}
    unknown = [name for name in rows.columns if name not in types]
    if unknown:
        raise TableError(f"the table at {path} has no column {', '.join(unknown)}; it has {', '.join(types)}")
    others = {
        column.name: _as_type(F.col(column.name), column.dataType, types[column.name])
        for column in rows.schema
        if column.dataType != types[column.name]
    }
    return rows.withColumns(others) if others else rows


def _as_type(value: Column, was: DataType, to: DataType) -> Column:
    """Cast a value to the type of the table's column; struct fields are matched by name."""
    if isinstance(was, StructType) and isinstance(to, StructType):
        types = {field.name: field.dataType for field in was}
        fields = (
            _as_type(value.getField(field.name), types[field.name], field.dataType).alias(field.name)
            if field.name in types
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in to
        )
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(was, ArrayType) and isinstance(to, ArrayType) and was != to:
        return F.transform(value, lambda one: _as_type(one, was.elementType, to.elementType))
    return value if was == to else value.cast(to)


def insert_missing(rows: DataFrame, path: str, keys: Sequence[str], within: Column) -> int:
    """Insert the rows whose keys are not in the table, and return how many. A rerun inserts no rows.

    If several writers run concurrently, the first succeeds and the others retry. `within` must be true for
    every table row with one of the keys; it is used to skip files. `rows` has one row per key and should be
    persisted.
    """
    given = rows.count()

    def insert() -> int:
        commit = begin(rows.sparkSession, path)
        near = commit.candidates(within)
        with executing_for(rows.sparkSession, amount_of(rows=max(given, near.rows))):
            there = commit.rows(near).select(*keys)
            missing = rows.join(there, list(keys), "left_anti").persist()
            try:
                count = missing.count()
                if count:
                    commit.write(_as_in(commit.schema, missing, path))
                    commit.finish()
                return count
            finally:
                missing.unpersist()

    return retry_on_conflict(insert) if given else 0


def update_matched(
    rows: DataFrame,
    path: str,
    keys: Sequence[str],
    where: Column,
    values: Mapping[str, Column],
    *,
    within: Column,
    why: Why | None = None,
) -> int:
    """Set `values` in the table's rows that match any of `rows` by key, and return the number updated.

    `where` and `values` refer to the table's row as `t` and to the given row as `s`. Rows remain unchanged
    unless `where` is true. The caller must ensure that a rerun updates no rows. `within` is as in
    `insert_missing`. `rows` should be persisted.
    """
    count = rows.count()
    if not count:
        return 0
    amount = amount_of(rows=count)
    given = gathered(rows, amount).dropDuplicates(list(keys)).withColumn(_GIVEN, F.lit(True)).alias("s")
    same = reduce(Column.__and__, (F.col(f"t.{key}") == F.col(f"s.{key}") for key in keys))

    def matched(standing: DataFrame) -> DataFrame:
        return standing.alias("t").join(broadcast(given, amount), same, "left")

    return retry_on_conflict(
        lambda: _set_where(
            begin(rows.sparkSession, path), within, matched, F.col(f"s.{_GIVEN}") & where, values, why=why
        )
    )


def update(
    spark: SparkSession,
    path: str,
    where: Column,
    values: Mapping[str, Column],
    *,
    within: Near | None = None,
    why: Why | None = None,
) -> int:
    """Set columns in the rows that `where` selects, and return the number updated.

    The caller must ensure that a rerun updates no rows. `within` must be true for all rows that `where`
    selects; it is used to skip files.
    """

    def matched(standing: DataFrame) -> DataFrame:
        return standing.alias("t")

    near = where if within is None else within
    return retry_on_conflict(lambda: _set_where(begin(spark, path), near, matched, where, values, why=why))


def _set_where(
    commit: Commit,
    within: Near | Column,
    matched: Callable[[DataFrame], DataFrame],
    where: Column,
    values: Mapping[str, Column],
    *,
    why: Why | None,
) -> int:
    """Set columns where `where` is true. `matched` aliases the table's rows as `t`, and can join others."""
    near, hit = commit.candidates(within), F.coalesce(where, F.lit(False))
    with executing_for(commit.spark, amount_of(rows=near.rows)):
        found = matched(commit.rows(near)).where(hit).groupBy(f"t.{FILE}").count().collect()
        if found:
            names = [row[FILE] for row in found]
            types = {column.name: column.dataType for column in commit.schema}
            cast = {name: value.cast(types[name]) for name, value in values.items()}
            commit.write(amended_rows(matched(commit.rows(near, names)), list(types), hit, cast))
            commit.remove(near, names)
            commit.finish(why=why)
    return sum(row["count"] for row in found)


def replace(
    rows: DataFrame, path: str, keys: Sequence[str], *, within: Column, why: Why | None = None
) -> int:
    """Upsert the rows by key in one commit, and return how many. Rows marked DELETED are deleted.

    `within` is as in `insert_missing`.
    """

    def put() -> int:
        commit = begin(rows.sparkSession, path)
        return upsert(rows, commit, commit.candidates(within), keys, why=why).rows

    return retry_on_conflict(put)


def keep_one(
    spark: SparkSession, path: str, keys: Sequence[str], within: Column, *, why: Why | None = None
) -> int:
    """Remove rows with duplicate keys, keeping one per key, and return the number removed.

    The change feed records the removed rows as deletes. Only rows for which `within` is true are compared. A
    rerun removes no rows.
    """

    def keep() -> int:
        commit = begin(spark, path)
        near = commit.candidates(within)
        with executing_for(spark, amount_of(rows=near.rows)):
            rows = commit.rows(near).where(within).groupBy(*keys)
            counted = rows.agg(F.count("*").alias("times"), F.collect_set(FILE).alias("files"))
            files = F.array_distinct(F.flatten(F.collect_list("files")))
            found = counted.where("times > 1").agg(F.sum(F.col("times") - 1), files).first()
            more, names = found or (None, [])
            if more:
                place = F.row_number().over(Window.partitionBy(*keys).orderBy(F.lit(0)))
                kind = F.when(place > 1, F.lit("delete")).alias(CHANGE_TYPE)
                commit.write(commit.rows(near, names).select(*commit.schema.names, kind))
                commit.remove(near, names)
                commit.finish(why=why)
        return more or 0

    return retry_on_conflict(keep)


def clear(
    spark: SparkSession, path: str, columns: Sequence[str], where: Column, *, why: Why | None = None
) -> int:
    """Set columns to null in the rows that `where` selects, and return the number of updated rows.

    Rows whose first column is already null are skipped, so a rerun updates no rows.
    """
    return update(
        spark, path, where & F.col(columns[0]).isNotNull(), dict.fromkeys(columns, F.lit(None)), why=why
    )


def delete(spark: SparkSession, path: str, where: Column, *, why: Why | None = None) -> int:
    """Delete the rows that `where` selects, and return the number deleted. A rerun deletes no rows.

    The change feed records each deleted row. `why` is as in `Commit.finish`.
    """

    def gone() -> int:
        commit, hit = begin(spark, path), F.coalesce(where, F.lit(False))
        near = commit.candidates(where)
        with executing_for(spark, amount_of(rows=near.rows)):
            found = commit.rows(near).where(hit).groupBy(FILE).count().collect()
            if found:
                names = [row[FILE] for row in found]
                kind = F.when(hit, F.lit("delete")).alias(CHANGE_TYPE)
                commit.write(commit.rows(near, names).select(*commit.schema.names, kind))
                commit.remove(near, names)
                commit.finish(why=why)
        return sum(row["count"] for row in found)

    return retry_on_conflict(gone)


def retry_on_conflict(write: Callable[[], T]) -> T:
    """Call `write`, and retry it after a conflict. Layers, maintenance and rebuilds write to the same tables.

    `write` must read the table's newest version each time. The pauses between attempts grow and are random,
    so that writers do not keep colliding. In total, the pauses last about half a minute.
    """
    pause_s = _FIRST_PAUSE_S
    for _ in range(_ATTEMPTS - 1):
        try:
            return write()
        except _CONFLICTS:
            time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return write()
