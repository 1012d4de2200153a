"""Cuts: which rows of a table a query has read, and what it had written by then.

A query's checkpoint says how far each micro-batch reads each table. The table that the query fills says, in
its transactions, which micro-batch it got last. Together they are a cut: a version of the filled table, and
exactly those rows of its sources that this version stands for. A cut stays valid while the streams run on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.progress import checkpoints
from lakehouse.records.validation import COORDINATES
from lakehouse.tables import Lake, Transaction
from lakehouse.tables.entries import LogEntry, rows_of, total

_NOTHING_YET = "-"


@dataclass(frozen=True)
class Position:
    """How far a query has read a Delta table: every version before this one, and some files of this one.

    `index` is the last file read among those that the version added, -1 for none. If the table had rows when
    the query began, all files of that version are read first, the oldest first: `is_starting`.
    """

    version: int
    index: int
    is_starting: bool


@dataclass(frozen=True)
class Appended:
    """Rows that some versions of tables brought, and their count; null where a file does not say."""

    rows: DataFrame
    count: int | None


@dataclass(frozen=True)
class Written:
    """A version of a table, and the last micro-batch of an application in it; null for none."""

    version: int
    batch: int | None


def application(lake: Lake, query: str) -> str | None:
    """Return the application id of the query's transactions; null before its first start."""
    found = checkpoints.query_id(lake.spark, lake.checkpoint(query))
    return None if found is None else checkpoints.application_of(query, found)


def written_now(spark: SparkSession, path: str, of: str | None) -> Written:
    """Return the table's newest version, and the last micro-batch of the application in it."""
    return _written(tables.snapshot(spark, path), of)


def written_up_to(spark: SparkSession, path: str, of: str | None, batch: int | None) -> Written:
    """Return the newest version that holds no micro-batch of the application later than `batch`."""
    written = written_now(spark, path, of)
    while written.batch is not None and (batch is None or written.batch > batch):
        written = _written(tables.snapshot(spark, path, written.version - 1), of)
    return written


def positions(lake: Lake, query: str, batch: int | None) -> dict[str, Position]:
    """Return how far a micro-batch of the query reads each Delta table, by table id; empty for no batch."""
    if batch is None:
        return {}
    return dict(_read_places(checkpoints.read_plan(lake.spark, lake.checkpoint(query), batch)))


def finished(lake: Lake, query: str) -> int | None:
    """Return the number of the last micro-batch that the query's checkpoint notes as done."""
    return checkpoints.last_done(lake.spark, lake.checkpoint(query))


def read_up_to(spark: SparkSession, path: str, position: Position | None) -> DataFrame:
    """Return the rows that a reader of the table's appends has read up to the position, as they are now.

    The reader skips commits that rewrite or remove rows; these count whether it has come to them or not. Rows
    of appends that it has not come to are left out. Files that compaction has replaced are not asked for,
    because VACUUM removes them. Raises TableError where log retention has removed commits since the position.
    """
    if position is None:
        return tables.read(spark, path).where(F.lit(False))
    newest = written_now(spark, path, None).version
    later = _commits(spark, path, position.version, newest + 1)
    if not any(commit.replaces_files for commit in later):
        return _as_of(spark, path, position)
    unread = [file for commit in later[1:] for file in _added(commit)]
    if position.is_starting:
        read = set(_first_files(spark, path, position))
        started_with = tables.files(spark, path, position.version)
        unread += [file.path for file in started_with if file.path not in read]
    else:
        unread += _added(later[0])[position.index + 1 :]
    rows = tables.read_version(spark, path, newest)
    if not unread:
        return rows
    coming = _rows_of(spark, path, unread, rows.schema)
    return rows.join(coming.select(*COORDINATES), list(COORDINATES), "left_anti")


def read_appended(spark: SparkSession, path: str, first: int | None, end: int) -> Appended:
    """Return what versions appended, from the first one on (null: from the start) and before the end.

    Raises TableError where log retention has removed such a commit.
    """
    commits = _commits(spark, path, first or 0, end)
    return appended_of(spark, path, [file for commit in commits for file in commit.appended])


def appended_of(spark: SparkSession, path: str, files: Sequence[Mapping[str, Any]]) -> Appended:
    """Return the rows of files that versions of the table appended, given in the log's own words."""
    return Appended(tables.read_files(spark, path, files), total([rows_of(file) for file in files]))


def commit_of(spark: SparkSession, path: str, version: int) -> LogEntry:
    """Return a version's actions; raises TableError where log retention has removed them."""
    (commit,) = _commits(spark, path, version, version + 1)
    return commit


def _rows_of(spark: SparkSession, path: str, files: list[str], schema: StructType) -> DataFrame:
    return tables.read_parquet(spark, [f"{path}/{unquote(file)}" for file in files], schema)


def has_unread(spark: SparkSession, path: str, position: Position | None, version: int) -> bool:
    """Tell whether appends before the version have not been read up to the position.

    Where log retention has removed commits since the position, any rows count as unread.
    """
    place = Position(0, -1, is_starting=False) if position is None else position
    try:
        commits = _commits(spark, path, place.version, version)
    except TableError:
        return bool(tables.files(spark, path, tables.first_version(spark, path)))
    unread = [_added(commit) for commit in commits]
    if place.is_starting:
        read = len(_first_files(spark, path, place))
        return read < len(tables.files(spark, path, place.version)) or any(unread[1:])
    return any(files[place.index + 1 :] if not number else files for number, files in enumerate(unread))


def place_behind(spark: SparkSession, path: str, position: Position, *, feed: bool) -> int | None:
    """Return the first version of which nothing has been read; null if part of the one before is unread.

    `feed`: the reader reads the change feed instead of appends.
    """
    if position.index < 0 and not position.is_starting:
        return position.version
    if feed:
        is_read = version_read(spark, path, position) == position.version
    else:
        is_read = not has_unread(spark, path, position, position.version + 1)
    return position.version + 1 if is_read else None


def next_place(spark: SparkSession, path: str, version: int | None, own: Transaction | None) -> int | None:
    """Return the next free version, if no row waits to be read except the transaction's own.

    `version` is the first one that has not been read, null for all. Null if other appends wait, or if log
    retention has removed such a commit.
    """
    newest = tables.version_of(spark, path)
    if version is None and tables.size_bytes(spark, path) == 0:
        return newest + 1
    try:
        commits = _commits(spark, path, version or 0, newest + 1)
    except TableError:
        return None
    for commit in commits:
        if commit.appended and (own is None or not _is_of(commit, own)):
            return None
    return newest + 1


def _is_of(commit: LogEntry, transaction: Transaction) -> bool:
    return any(
        (one["appId"], one["version"]) == (transaction.application, transaction.version)
        for one in commit.of("txn")
    )


def _as_of(spark: SparkSession, path: str, position: Position) -> DataFrame:
    if position.is_starting:
        read = _first_files(spark, path, position)
        rows = tables.read_version(spark, path, position.version)
        all_of_it = len(read) == len(tables.files(spark, path, position.version))
        return rows if all_of_it else rows.where(_in(read))
    if position.index < 0:
        return tables.read_version(spark, path, position.version - 1)
    commit = commit_of(spark, path, position.version)
    unread = _added(commit)[position.index + 1 :]
    rows = tables.read_version(spark, path, position.version)
    return rows.where(~_in(unread)) if unread else rows


def _first_files(spark: SparkSession, path: str, position: Position) -> list[str]:
    files = sorted(
        tables.files(spark, path, position.version), key=lambda file: (file.modified_ms, file.path)
    )
    return [file.path for file in files[: position.index + 1]]


def _added(commit: LogEntry) -> list[str]:
    return [str(file["path"]) for file in commit.appended]


def _commits(spark: SparkSession, path: str, first: int, end: int) -> list[LogEntry]:
    """Return the commits of the versions from the first one on and before the end."""
    try:
        return [tables.read_commit(spark, path, number) for number in range(first, end)]
    except Py4JJavaError as error:
        kept = tables.first_version(spark, path)
        if first >= kept:
            raise
        raise TableError(
            f"the table at {path} was read up to version {first}, and its log begins at version {kept}: "
            "log retention has removed what was done in between"
        ) from error


def version_read(spark: SparkSession, path: str, position: Position | None) -> int | None:
    """Return the last version that a reader of the change feed has read completely; null for none.

    Raises TableError where log retention has removed that version.
    """
    if position is None:
        return None
    read = position.index + 1
    if position.is_starting:
        return position.version if read >= len(tables.files(spark, path, position.version)) else None
    if not read:
        return position.version - 1
    files = commit_of(spark, path, position.version).feed
    return position.version if read >= len(files) else position.version - 1


def with_same_rows(spark: SparkSession, path: str, version: int) -> int:
    """Return the newest version that has the same rows as this one, in whatever files.

    An older version's files may be gone: compaction replaces them, and VACUUM removes them.
    """
    newest = written_now(spark, path, None).version
    while version < newest:
        if not commit_of(spark, path, version + 1).has_same_rows:
            break
        version += 1
    return version


def _in(paths: list[str]) -> Any:
    return F.col("_metadata.file_name").isin(paths)


def _written(snapshot: Any, of: str | None) -> Written:
    batch = None if of is None else tables.last_batch(snapshot, of)
    return Written(int(snapshot.version()), batch)


def _read_places(plan: list[str]) -> Iterator[tuple[str, Position]]:
    """Yield how far a plan, as stored in its checkpoint, reads each Delta table, by table id."""
    for line in plan:
        if line == _NOTHING_YET:
            continue
        source = json.loads(line)
        place = Position(
            int(source["reservoirVersion"]), int(source["index"]), bool(source["isStartingVersion"])
        )
        yield str(source["reservoirId"]), place
