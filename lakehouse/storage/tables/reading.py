"""Read a table's rows: current, as of a version, by file, or as changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark.execution import amount_of, by_reference, executing_for
from lakehouse.storage.spark.query_errors import are_files_gone
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables.data_files import file_of, files_of, frame_of_files
from lakehouse.storage.tables.delta_internals import Snapshot
from lakehouse.storage.tables.entries import LogEntry
from lakehouse.storage.tables.log import (
    FEW_FILES,
    commit_file,
    committed_at,
    noted_files,
    read_commit,
    size_bytes,
    snapshot,
    version_of,
    written_ms,
)
from lakehouse.storage.tables.pruning import last_ones
from lakehouse.storage.tables.specs import EPOCH, TableSpec, from_micros

FEW_VERSIONS = 10
"""Up to this many versions, changes are read file by file, with a separate scan for each version."""

_OF_PATTERNS = re.compile(r"[][{}?*\\]")
_READ_WHOLE_BYTES = 1 << 20  # a table up to this size is read whole, because selecting files takes Spark jobs
_YOUNG = 20  # the maximum number of commits that are read one by one
_FEED_KINDS = {"add", "cdc", "commitInfo", "remove", "txn"}


def define_view(spark: SparkSession, spec: TableSpec, path: str) -> None:
    """Add a table to the session's catalog as layer.table. Nothing is written to the lake."""
    location = path.replace("'", "\\'")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {spec.layer}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {spec.qualified_name} USING DELTA LOCATION '{location}'")


def read(spark: SparkSession, path: str) -> DataFrame:
    """Return the table's current rows; later writes do not change the frame.

    Raises Spark's AnalysisException if there is no table.
    """
    found = snapshot(spark, path)
    return spark.read.format("delta").load(path) if delta.version_of(found) < 0 else _rows_of(spark, found)


def has_rows(spark: SparkSession, path: str, condition: str = "true") -> bool:
    """Return whether the table has a row that matches a SQL condition."""
    return size_bytes(spark, path) > 0 and not read(spark, path).where(condition).isEmpty()


def read_version(spark: SparkSession, path: str, version: int) -> DataFrame:
    """Return the table's rows as of a version."""
    return _rows_of(spark, snapshot(spark, path, version))


def read_files(spark: SparkSession, path: str, added: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return the rows of files, given as `add` actions, even if the table no longer contains the files."""
    return frame_of_files(spark, snapshot(spark, path), map(file_of, added))


def as_declared(rows: DataFrame, schema: StructType) -> DataFrame:
    """Add declared columns and fields of structs that the rows lack, as null.

    A table lacks new columns until a query opens it.
    """
    kept, lacking = {field.name: field.dataType for field in rows.schema}, dict[str, Column]()
    for field in schema:
        standing = kept.get(field.name)
        if standing is None:
            lacking[field.name] = F.lit(None).cast(field.dataType)
        elif isinstance(standing, StructType) and isinstance(field.dataType, StructType):
            lacking |= _filled(field.name, standing, field.dataType)
    return rows.withColumns(lacking) if lacking else rows


def _filled(name: str, standing: StructType, declared: StructType) -> dict[str, Column]:
    """Return the struct with all declared fields, or nothing if it has them already."""
    if set(declared.names) <= set(standing.names):
        return {}
    struct = F.col(name)
    fields = (
        (struct[one.name] if one.name in standing.names else F.lit(None).cast(one.dataType)).alias(one.name)
        for one in declared
    )
    return {name: F.when(struct.isNotNull(), F.struct(*fields))}


def _rows_of(spark: SparkSession, found: Snapshot) -> DataFrame:
    """Return a snapshot's rows.

    All files of a small table are read, because Delta would need Spark jobs to select the matching files.
    """
    noted = delta.noted_bytes(found)
    if noted is not None and noted <= _READ_WHOLE_BYTES:
        files = noted_files(found, FEW_FILES)
        if files is not None:
            return delta.rows_of_files(spark, found, files)
    return delta.rows_of(spark, found)


def is_in_its_commits(spark: SparkSession, path: str) -> bool:
    """Return whether the table has only a few commits, all of them appends, so reading each one is fast."""
    newest = version_of(spark, path)
    if newest > _YOUNG or not storage.exists(spark, commit_file(path, 0)):
        return False
    commits = [_entry(spark, path, version) for version in range(1, newest + 1)]
    return all(commit is not None and commit.only_appends for commit in commits)


def _entry(spark: SparkSession, path: str, version: int) -> LogEntry | None:
    """Return a version's log entry, or None if it cannot be parsed, so that Delta must read the changes."""
    try:
        return read_commit(spark, path, version)
    except ValueError:
        return None


def read_changes(spark: SparkSession, path: str, first: int, last: int) -> DataFrame:
    """Return the table's change feed between two versions, both inclusive.

    If there are only a few versions and their commits name all files, the files are read directly, because
    Delta would list the whole log.
    """
    if last - first < FEW_VERSIONS:
        parts = [_changes_of(spark, path, version) for version in range(first, last + 1)]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return reduce(DataFrame.unionByName, known)
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    return reader.option("startingVersion", first).option("endingVersion", last).load(path)


def _changes_of(spark: SparkSession, path: str, version: int) -> DataFrame | None:
    """Return a version's changes, or None if its commit does not list them file by file."""
    entry = _entry(spark, path, version)
    if entry is None:
        return None
    feed = [str(file["path"]) for file in entry.of("cdc")]
    if not entry.kinds <= _FEED_KINDS or (not feed and entry.replaces_files):
        return None
    files = feed or [str(file["path"]) for file in entry.appended]
    kind = StructType().add("_change_type", "string")
    columns = StructType.fromJson(json.loads(delta.schema_json(snapshot(spark, path))))
    schema = StructType([*columns, *kind]) if feed else columns
    if not files:
        rows = spark.createDataFrame([], schema)
    else:
        rows = read_parquet(spark, [f"{path}/{unquote(file)}" for file in files], schema)
    if not feed:
        rows = rows.withColumn("_change_type", F.lit("insert"))
    at = entry.in_commit_ms or written_ms(spark, path, version)
    # A literal would be part of the generated code, which would be compiled again for every version.
    by = F.col(columns.names[0])
    noted = {
        "_commit_version": by_reference(F.lit(version).cast("long"), by),
        "_commit_timestamp": by_reference(F.timestamp_millis(F.lit(at)), by),
    }
    return rows.withColumns(noted)


def read_parquet(spark: SparkSession, files: Sequence[str], schema: StructType) -> DataFrame:
    """Return the rows of Parquet files. Special characters in the files' paths are taken literally."""
    reader = spark.read.schema(schema)
    if not any(map(_OF_PATTERNS.search, files)):
        return reader.parquet(*files)
    # With this option and several paths, Spark reads all of them once for each path.
    alone = reader.option("__globPaths__", "false")
    return reduce(DataFrame.union, (alone.parquet(file) for file in files))


def read_changes_since(spark: SparkSession, path: str, since: datetime) -> DataFrame:
    """Return the changes committed at `since` (UTC) or later, as far back as the table's log reaches.

    The rows contain _change_type, _commit_version and _commit_timestamp. Reading the frame fails if VACUUM
    has removed files from that period.
    """
    changes = _changes_from(spark, path, _first_since(spark, path, since))
    return changes.where(F.col("_commit_timestamp") >= F.lit(since))


def readable_since(spark: SparkSession, path: str, since: datetime) -> datetime:
    """Return the earliest time (UTC), not before `since`, from which the change feed is complete."""
    first = gone = _first_since(spark, path, since)
    end = version_of(spark, path) + 1
    whole = end
    while gone < whole:
        middle = (gone + whole) // 2
        if _has_files(_changes_from(spark, path, middle)):
            whole = middle
        else:
            gone = middle + 1
    if whole == first:
        return since
    return committed_at(spark, path, min(whole, end - 1)) + timedelta(milliseconds=whole == end)


def _first_since(spark: SparkSession, path: str, since: datetime) -> int:
    since_ms = (since - EPOCH) // timedelta(milliseconds=1)
    return delta.version_since(spark, delta.log_of(spark, path), since_ms)


def _changes_from(spark: SparkSession, path: str, first: int) -> DataFrame:
    newest = version_of(spark, path)
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    changes = reader.option("startingVersion", min(first, newest)).load(path)
    return changes if first <= newest else changes.where(F.lit(False))


def _has_files(changes: DataFrame) -> bool:
    """Return whether all files of a change feed exist. Each file is opened, but no row is read."""
    try:
        changes.count()
    except (PySparkException, Py4JError) as error:
        if are_files_gone(error):
            return False
        raise
    return True


class HighWaterMark:
    """The greatest value of a timestamp column (UTC) in a table that no other process writes to.

    The value is read from the table once, and then updated with each written value. Delta's file statistics
    truncate timestamps, so the first read scans the column, but only in files that might contain the maximum.
    """

    def __init__(self, path: str, column: str) -> None:
        self._path = path
        self._column = column
        self._known = False
        self._value: datetime | None = None

    def value(self, spark: SparkSession) -> datetime | None:
        """Return the greatest value, or None if the table is empty."""
        if not self._known:
            self._value = self._greatest(spark)
            self._known = True
        return self._value

    def advance(self, value: datetime) -> None:
        """Update the greatest value with a newly written value."""
        self._value = value if self._value is None else max(self._value, value)

    def _greatest(self, spark: SparkSession) -> datetime | None:
        newest = snapshot(spark, self._path)
        by_name = files_of(spark, self._path, newest).by_name
        last = last_ones({name: file.bounds for name, file in by_name.items()}, self._column)
        files = [by_name[name] for name in last]
        with executing_for(spark, amount_of(size_bytes=sum(file.size_bytes for file in files))):
            rows = frame_of_files(spark, newest, files)
            row = rows.agg(F.unix_micros(F.max(self._column)).alias("micros")).first()
        return None if row is None or row.micros is None else from_micros(row.micros)
