"""Cuts: a version of a table, together with exactly the source rows that it covers.

For each version of a table, the log records how far its query had read the source. The version and this
position form a cut: the version covers exactly the source rows before the position. A cut remains valid while
the streams run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import TableError
from lakehouse.engine.progress import parts
from lakehouse.engine.progress.positions import BEFORE_ALL, application, position_in
from lakehouse.storage import tables
from lakehouse.storage.tables import Position
from lakehouse.storage.tables.entries import Action
from lakehouse.streams.contract import COORDINATES


def position_of(spark: SparkSession, query: str, target: str, source: str) -> Position | None:
    """Return how far the query that fills `target` has read `source`, or None if it has read nothing."""
    return position_at(spark, query, tables.snapshot(spark, target), source)


def position_at(spark: SparkSession, query: str, snapshot: Any, source: str) -> Position | None:
    """Return the query's position in a source, as recorded in a snapshot of the table that it fills."""
    noted = tables.transactions_in(spark, snapshot)
    return position_in(noted, application(query, tables.table_id(spark, source)))


def not_ahead(
    spark: SparkSession, query: str, side: str, target_id: str, read: Mapping[str, Position | None]
) -> int:
    """Return a side table's newest version that covers nothing beyond the positions in `read`.

    `read` is keyed by the path of the source. `target_id` is the id of the table that the query fills after
    the side table.
    """
    snapshot = tables.snapshot(spark, side)
    while True:
        noted = tables.transactions_in(spark, snapshot)
        of_paths = {
            path: position_in(noted, application(query, tables.table_id(spark, path), of=target_id))
            for path in read
        }
        is_ahead = any(
            there is not None and (here is None or here.is_before(there))
            for path, there in of_paths.items()
            for here in (read[path],)
        )
        version = tables.version_in(snapshot)
        if not is_ahead or version == 0:
            return version
        snapshot = tables.snapshot(spark, side, version - 1)


def is_ahead(spark: SparkSession, query: str, side: str, *, target: str, version: int, source: str) -> bool:
    """Return whether a side table covers more of the source than this version of the target table."""
    name = application(query, tables.table_id(spark, source), of=tables.table_id(spark, target))
    there = position_in(tables.transactions(spark, side), name)
    here = position_at(spark, query, tables.snapshot(spark, target, version), source)
    return there is not None and (here is None or here.is_before(there))


def read_up_to(spark: SparkSession, path: str, position: Position | None) -> DataFrame:
    """Return the current state of the rows that a reader at the position has read.

    If the table's readers follow corrections, the rows are returned as they were at the position. Otherwise,
    readers skip commits that rewrite or remove rows, and the result includes later changes to the rows. Rows
    appended after the position are left out. Files that compaction has replaced are not read, because VACUUM
    removes them. Raises TableError if log retention has removed commits since the position.
    """
    if position is None:
        return tables.read(spark, path).where(F.lit(False))
    if position.version > 0 and not position.is_beginning and tables.is_followed(spark, path):
        return tables.read_version(spark, path, with_same_rows(spark, path, position.version - 1))
    if position.is_beginning and (until := parts.landed_before(spark, path, position)) is not None:
        return parts.landed_within(tables.read(spark, path), None, until)
    newest = tables.version_of(spark, path)
    first = position.version + 1 if position.is_beginning else position.version
    later = list(parts.entries(spark, path, first, newest + 1))
    if not any(entry.replaces_files for entry in later):
        return _as_of(spark, path, position)
    unread = [file for entry in later for file in entry.appended]
    if position.is_beginning:
        unread += tables.files_at(spark, path, position.version)[position.files :]
    rows = tables.read_version(spark, path, newest)
    if not unread:
        return rows
    names = [f"{path}/{unquote(str(file['path']))}" for file in unread]
    coming = tables.read_parquet(spark, names, rows.schema)
    return rows.join(coming.select(*COORDINATES), list(COORDINATES), "left_anti")


def has_unread(spark: SparkSession, path: str, position: Position | None, end: int) -> bool:
    """Return whether a reader at the position has unread appends before the version `end`.

    If the table's readers follow corrections, corrections count as appends. If log retention has removed
    commits since the position, all rows count as unread.
    """
    place = BEFORE_ALL if position is None else position
    try:
        if place.is_beginning and _unread_first(spark, path, place):
            return True
        first = place.version + 1 if place.is_beginning else place.version
        follows = tables.is_followed(spark, path)
        found = parts.entries(spark, path, first, end)
        return any(entry.followed if follows else entry.appended for entry in found)
    except TableError:
        return bool(tables.files(spark, path, tables.first_version(spark, path)))


def with_same_rows(spark: SparkSession, path: str, version: int) -> int:
    """Return the newest version that contains the same rows as this version, even if in different files.

    The files of an older version might no longer exist, because compaction replaces them and VACUUM then
    removes them.
    """
    newest = tables.version_of(spark, path)
    for entry in parts.entries(spark, path, version + 1, newest + 1):
        if not entry.has_same_rows:
            return entry.version - 1
    return max(version, newest)


def _as_of(spark: SparkSession, path: str, position: Position) -> DataFrame:
    if position.is_beginning:
        read = tables.files_at(spark, path, position.version)[: position.files]
        return tables.read_version(spark, path, position.version).where(_in(read))
    if position.version == 0:
        return tables.read(spark, path).where(F.lit(False))
    return tables.read_version(spark, path, position.version - 1)


def _unread_first(spark: SparkSession, path: str, position: Position) -> list[Action]:
    return tables.files_at(spark, path, position.version)[position.files :]


def _in(files: list[Action]) -> Any:
    names = [unquote(str(file["path"])).rpartition("/")[2] for file in files]
    return F.col("_metadata.file_name").isin(names)
