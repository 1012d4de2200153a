"""Read a table's log: version, id, properties, files and transactions."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.common.memory import on_forget
from lakehouse.storage.spark import files as storage
from lakehouse.storage.spark.execution import Amount, amount_of
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables.adoption import adoption_in, sender
from lakehouse.storage.tables.delta_internals import Action, Log, Segment, Snapshot
from lakehouse.storage.tables.entries import LogEntry, commit_name, entry_of
from lakehouse.storage.tables.inside import refuse_paths
from lakehouse.storage.tables.specs import DataFile, from_micros

CHECKPOINT_INTERVAL = 100
"""The number of commits between checkpoints of a table's log."""

CHANGE_FEED = "delta.enableChangeDataFeed"
FOLLOWED = "lakehouse.is_followed"

_SUSPECTED = r"[:%\\]|\.\.|^/"
"""Matches every path that points outside its table, and few others (`lakehouse.storage.tables.inside`)."""

_OPENED: set[tuple[str, str]] = set()
"""The paths and ids of tables already checked for files outside their directory."""
on_forget(_OPENED.clear)

FEW_FILES = 16
"""If a small table has at most this many files, reading all of them is cheaper than selecting some."""


@dataclass(frozen=True)
class _Seen:
    """A thread's log cache in a `looking_once` block: snapshots by table, commits by table and version."""

    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    commits: dict[tuple[str, int], LogEntry] = field(default_factory=dict)


_SEEN: ContextVar[_Seen | None] = ContextVar("_SEEN", default=None)
"""The cache of the `looking_once` block that this thread is in, or None.

With a parameter instead, every function that reads a table would have to pass the cache on. The cache is
discarded at the end of the block.
"""


@contextmanager
def looking_once() -> Iterator[None]:
    """Check each table's log for new commits only once during the block.

    During the block, this process sees its own commits, but not those of other processes. In an object store,
    each check takes two requests, and a step would repeat the checks many times while choosing its rows.
    """
    token = _SEEN.set(_Seen())
    try:
        yield
    finally:
        _SEEN.reset(token)


def snapshot(spark: SparkSession, path: str, version: int | None = None) -> Snapshot:
    """Return Delta's snapshot of a version, by default the newest. Its version is -1 if there is no table."""
    log, seen = delta.log_of(spark, path), _SEEN.get()
    if version is not None:
        return delta.snapshot_at(spark, log, version)
    before = None if seen is None else seen.snapshots.get(path)
    if before is not None and delta.version_of(before) == delta.version_of(delta.known_snapshot(log)):
        return before
    newest = _newest(spark, path, log)
    found = delta.newest_snapshot(spark, log) if newest is None else newest
    if seen is not None:
        seen.snapshots[path] = found
    return found


def _newest(spark: SparkSession, path: str, log: Log) -> Snapshot | None:
    """Return the newest snapshot without listing the log, or None if the log must be listed.

    Version numbers have no gaps. The known snapshot is therefore the newest if its commit file is unchanged
    and the next commit file is missing. Commits from other processes are added to the snapshot one by one.
    Delta would instead list the whole directory, which also finds newer checkpoints. The log must be listed
    once a checkpoint is due; otherwise the snapshot would contain every commit since its last checkpoint.
    """
    known = delta.known_snapshot(log)
    version = newest = delta.version_of(known)
    if version < 0:
        return None
    segment = delta.segment_of(known)
    written, next_ms = _looked_at(spark, path, version)
    if written is None or written != delta.last_written_ms(segment):
        return None
    last = delta.checkpoint_version(segment) + CHECKPOINT_INTERVAL
    has_next = next_ms is not None
    while newest <= last and has_next:
        newest += 1
        status = storage.status(spark, commit_file(path, newest))
        segment = delta.with_commit(spark, segment, status, newest)
        has_next = storage.exists(spark, commit_file(path, newest + 1))
    if newest > last:
        return None
    return known if newest == version else _installed(spark, log, segment)


def _installed(spark: SparkSession, log: Log, segment: Segment) -> Snapshot:
    """Install the segment's snapshot as Delta's current snapshot, unless that is at least as new."""
    with delta.locked(log):
        known = delta.known_snapshot(log)
        if delta.version_of(known) >= delta.segment_version(segment):
            return known
        made = delta.install(spark, log, segment, int(time.time() * 1000))
        delta.uncache(known)
        return made


@dataclass(frozen=True)
class Mark:
    """A table's version, and the time when its commit was written, in ms since the epoch."""

    version: int
    modified_ms: int | None


def mark_of(snapshot: Snapshot) -> Mark:
    """Return a Mark for a snapshot's version, to pass to `is_newest`."""
    version = delta.version_of(snapshot)
    return Mark(version, None if version < 0 else delta.last_written_ms(delta.segment_of(snapshot)))


def is_newest(spark: SparkSession, path: str, mark: Mark) -> bool:
    """Return whether a version is still the newest, judging by modification times of two commit files."""
    written_ms, next_ms = _looked_at(spark, path, mark.version)
    return next_ms is None and mark.modified_ms == written_ms


def _looked_at(spark: SparkSession, path: str, version: int) -> tuple[int | None, int | None]:
    """Return when the commits of this version and the next were written; None for a missing commit."""
    return storage.modified_ms_of_both(spark, commit_file(path, version), commit_file(path, version + 1))


def written_ms(spark: SparkSession, path: str, version: int) -> int | None:
    """Return when a version's commit was written, in ms since the epoch, or None if the commit is missing."""
    newest = mark_of(snapshot(spark, path))
    if newest.version == version:
        return newest.modified_ms
    return storage.modified_ms(spark, commit_file(path, version))


def commit_file(path: str, version: int) -> str:
    """Return the path of a version's commit file."""
    return f"{path}/{commit_name(version)}"


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether there is a Delta table at the path, with a commit and not just an incomplete log."""
    return delta.version_of(snapshot(spark, path)) >= 0


def version_of(spark: SparkSession, path: str) -> int:
    """Return the table's current version, as a number for `read_version`."""
    return delta.version_of(snapshot(spark, path))


def table_id(spark: SparkSession, path: str) -> str:
    """Return the id that Delta gave the table at its creation."""
    return id_of(snapshot(spark, path))


def version_in(snapshot: Snapshot) -> int:
    """Return a snapshot's version, or -1 if there is no table."""
    return delta.version_of(snapshot)


def id_of(snapshot: Snapshot) -> str:
    """Return the id of a snapshot's table."""
    return delta.table_id(snapshot)


def generation_ms(spark: SparkSession, path: str) -> int:
    """Return the table's generation: its creation time or, for a copy, its adoption time, in epoch ms.

    A table with a later generation has newer rows.
    """
    found = snapshot(spark, path)
    adoption = adoption_in(transactions_in(spark, found))
    return delta.created_ms(found) or 0 if adoption is None else adoption.at_ms


def sent_as(spark: SparkSession, path: str) -> str:
    """Return the name that identifies the table where sent rows are recorded (see `tables.adoption`)."""
    found = snapshot(spark, path)
    return sender(id_of(found), adoption_in(transactions_in(spark, found)))


@dataclass(frozen=True)
class Metadata:
    """A table's properties and schema, from its log."""

    properties: dict[str, str]
    schema: StructType


def metadata(spark: SparkSession, path: str) -> Metadata | None:
    """Return a table's metadata, or None if there is no table."""
    found = snapshot(spark, path)
    if delta.version_of(found) < 0:
        return None
    noted = delta.metadata(found)
    return Metadata(noted["configuration"], StructType.fromJson(json.loads(noted["schemaString"])))


def schema_of(spark: SparkSession, path: str) -> StructType:
    """Return a table's schema from its log, including column comments."""
    return StructType.fromJson(json.loads(delta.schema_json(snapshot(spark, path))))


def properties_of(snapshot: Snapshot) -> dict[str, str]:
    """Return a table's properties as of a snapshot."""
    found: dict[str, str] = delta.metadata(snapshot)["configuration"]
    return found


def properties(spark: SparkSession, path: str) -> dict[str, str]:
    """Return the table's properties, or an empty dict if there is no table."""
    found = metadata(spark, path)
    return {} if found is None else found.properties


def is_followed(spark: SparkSession, path: str) -> bool:
    """Return whether readers of the table's appends also get corrected rows (`TableSpec.is_followed`)."""
    return properties(spark, path).get(FOLLOWED) == "true"


def files(spark: SparkSession, path: str, version: int | None = None) -> list[DataFile]:
    """Return a version's data files (default: newest). Raises TableError if a file is outside the table."""
    found = snapshot(spark, path, version)
    noted = noted_files(found)
    if noted is not None:
        named = [
            DataFile(delta.path_of(file), delta.modified_ms(file), delta.size_of(file)) for file in noted
        ]
    else:
        rows = delta.all_files(spark, found).select("path", "modificationTime", "size").collect()
        named = [DataFile(row.path, row.modificationTime, row["size"]) for row in rows]
    refuse_paths(path, delta.version_of(found), (file.path for file in named))
    return named


def refuse_files_outside(spark: SparkSession, path: str, at: Snapshot) -> None:
    """Raise TableError if the table has files outside its path. Checks a table once per process.

    Later commits are checked when they are read. If the version's checksum does not list the files, this
    check runs a Spark job.
    """
    opened = path, id_of(at)
    if opened in _OPENED:
        return
    noted = noted_files(at)
    if noted is not None:
        named = [delta.path_of(file) for file in noted]
    else:
        suspected = delta.all_files(spark, at).where(F.col("path").rlike(_SUSPECTED))
        named = [row.path for row in suspected.select("path").collect()]
    refuse_paths(path, delta.version_of(at), named)
    _OPENED.add(opened)


def size_bytes(spark: SparkSession, path: str) -> int:
    """Return the size of the table's current data files, in bytes."""
    found = snapshot(spark, path)
    noted = delta.noted_bytes(found)
    return delta.all_bytes(found) if noted is None else noted


def amount_in(spark: SparkSession, paths: Iterable[str]) -> Amount:
    """Return the execution mode that suits the largest of the tables at these paths."""
    return amount_of(size_bytes=max((size_bytes(spark, path) for path in paths), default=0))


def noted_files(snapshot: Snapshot, most: int = sys.maxsize) -> list[Action] | None:
    """Return Delta's AddFile objects from a version's checksum, or None if the checksum lists no files.

    Also returns None if there are more than `most` files. A checksum lists a table's files only while there
    are few. Otherwise, Delta must replay the log in Spark jobs to list the files.
    """
    return delta.noted_files(snapshot, most)


def first_version(spark: SparkSession, path: str) -> int:
    """Return the earliest version that can still be read. Log retention removes earlier versions."""
    if storage.exists(spark, commit_file(path, 0)):
        return 0
    return delta.first_recreatable(delta.log_of(spark, path))


def committed_at(spark: SparkSession, path: str, version: int) -> datetime:
    """Return the time (UTC) at which a version was committed."""
    return from_micros(delta.committed_ms(snapshot(spark, path, version)) * 1000)


def read_commit(spark: SparkSession, path: str, version: int) -> LogEntry:
    """Return the log entry of a version. An entry that `entry_of` cannot parse is first rewritten by Delta.

    Raises ValueError if Delta cannot parse the commit either, and TableError if the commit names a file
    outside the table.
    """
    seen = _SEEN.get()
    before = None if seen is None else seen.commits.get((path, version))
    if before is None:
        before = _read_commit(spark, path, version)
        if seen is not None:
            seen.commits[path, version] = before
    return before


def _read_commit(spark: SparkSession, path: str, version: int) -> LogEntry:
    text = storage.read_text(spark, commit_file(path, version))
    try:
        return entry_of(version, text, path)
    except ValueError as error:
        try:
            return entry_of(version, delta.rewritten(spark, text), path)
        except Py4JJavaError:
            raise error from None


def transactions(spark: SparkSession, path: str) -> dict[str, int]:
    """Return the version of each application's last transaction in the table."""
    return transactions_in(spark, snapshot(spark, path))


def noted_ms(spark: SparkSession, path: str, application: str) -> int | None:
    """Return the time of an application's last transaction, in ms since the epoch, or None if unknown."""
    return delta.noted_ms(spark, snapshot(spark, path), application)


def transactions_in(spark: SparkSession, snapshot: Snapshot) -> dict[str, int]:
    """Return the version of each application's last transaction as of a snapshot.

    The transactions come from the checksum of the snapshot's version. If there are too many for the checksum,
    or another library committed without a checksum, Delta replays the log in Spark jobs.
    """
    noted = delta.noted_transactions(spark, snapshot)
    return delta.all_transactions(spark, snapshot) if noted is None else noted
