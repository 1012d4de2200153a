"""The data files in a table's newest version, updated with each commit's added and removed files.

To list the files, Delta would replay the log in Spark jobs for every version. This module reads the list
once and applies later commits to it. A micro-batch's cost therefore does not grow with the table's age.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.memory import on_forget
from lakehouse.storage.spark import files as storage
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables import entries
from lakehouse.storage.tables.delta_internals import Action, Snapshot
from lakehouse.storage.tables.entries import bounds_of, is_file, landings_of, reading_order, rows_of
from lakehouse.storage.tables.inside import refuse_outside
from lakehouse.storage.tables.log import read_commit, snapshot
from lakehouse.storage.tables.pruning import Bounds

_MOST_COMMITS = 50  # if more commits are missing, the full list is read instead


@dataclass(frozen=True)
class File:
    """A data file: its size, row count (None if unknown), minima and maxima by column, and `add` action."""

    size_bytes: int
    rows: int | None
    bounds: Bounds
    action: Mapping[str, Any]


@dataclass(frozen=True)
class Files:
    """The files in one version of a table, keyed by name."""

    table: str
    version: int
    by_name: Mapping[str, File]


_known: dict[str, Files] = {}
on_forget(_known.clear)
_lock = Lock()  # guards `_known`; not held while reading files


def files_of(spark: SparkSession, path: str, at: Snapshot) -> Files:
    """Return the data files in a snapshot of the table at `path`. Thread-safe."""
    table, version = delta.table_id(at), delta.version_of(at)
    with _lock:
        known = _known.get(path)
    if known is not None and known.table == table and version == known.version:
        return known
    found = None
    if known is not None and known.table == table and 0 < version - known.version <= _MOST_COMMITS:
        found = _advanced(spark, path, known, version)
    found = found or _read(spark, path, at, table, version)
    with _lock:
        newest = _known.get(path)
        if newest is None or newest.table != table or newest.version < version:
            _known[path] = found
    return found


def files_at(spark: SparkSession, path: str, version: int) -> list[entries.Action]:
    """Return a version's files as log actions, in the order in which a new query reads them.

    `lakehouse.operations.telemetry.delta_log` orders them in the same way.
    """
    at = snapshot(spark, path, version)
    by_name = _read(spark, path, at, delta.table_id(at), version).by_name
    return sorted((file.action for file in by_name.values()), key=_reading_order)


def frame_of_files(spark: SparkSession, at: Snapshot, files: Iterable[File]) -> DataFrame:
    """Return the rows in a subset of a snapshot's files."""
    return delta.rows_of_files(spark, at, [to_delta(spark, file) for file in files])


def to_delta(spark: SparkSession, file: File) -> Action:
    """Return Delta's AddFile object for a file."""
    return delta.added_file(spark, file.action)


def _advanced(spark: SparkSession, path: str, known: Files, version: int) -> Files | None:
    """Return the files at a later version by applying commits, or None if one is missing or unreadable."""
    try:
        commits = [read_commit(spark, path, number) for number in range(known.version + 1, version + 1)]
    except (Py4JJavaError, ValueError):
        return None
    by_name = dict(known.by_name)
    for entry in commits:
        for gone in entry.of("remove"):
            by_name.pop(_name(gone), None)
        by_name |= {_name(added): file_of(added) for added in entry.of("add")}
    return Files(known.table, version, by_name)


def _read(spark: SparkSession, path: str, at: Snapshot, table: str, version: int) -> Files:
    """Read a version's files from its checksum, or from the log if the checksum does not list the files."""
    noted = _noted(spark, path, version)
    if noted is None:
        files = delta.all_files(spark, at).select(F.to_json(F.struct("*")).alias("action"))
        noted = [json.loads(row.action) for row in files.collect()]
    refuse_outside(path, version, ({"add": action} for action in noted))
    return Files(table, version, {_name(action): file_of(action) for action in noted})


def _noted(spark: SparkSession, path: str, version: int) -> list[dict[str, Any]] | None:
    """Return the files listed in a version's checksum, or None if it lists no files or is invalid.

    The checksum is written without fsync, so it can be empty after a power failure.
    """
    file = f"{path}/_delta_log/{version:020}.crc"
    if not storage.exists(spark, file):
        return None
    try:
        found = json.loads(storage.read_text(spark, file))
    except (Py4JJavaError, ValueError):
        return None
    files = found.get("allFiles") if isinstance(found, dict) else None
    return files if isinstance(files, list) and all(map(is_file, files)) else None


def _reading_order(file: entries.Action) -> tuple[datetime, int, str]:
    return reading_order(landings_of(file)[0], int(file["modificationTime"]), str(file["path"]))


def _name(action: Mapping[str, Any]) -> str:
    return str(action["path"]).rpartition("/")[2]


def file_of(action: Mapping[str, Any]) -> File:
    """Return the file that an `add` action describes."""
    whole = {**action, "dataChange": False, "partitionValues": action.get("partitionValues") or {}}
    return File(int(action["size"]), rows_of(action), Bounds(*bounds_of(action)), whole)
