"""What a table's log says: version, identity, properties, files and transactions."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lakehouse.spark import storage
from lakehouse.tables.entries import LogEntry, entry_of
from lakehouse.tables.specs import DataFile, Transaction, from_micros

CHECKPOINT_INTERVAL = 100
"""A checkpoint of a table's log is written every so many commits."""

FEW_FILES = 16
"""Below this many files, reading all of a small table is cheaper than selecting files by statistics."""


def log_of(spark: SparkSession, path: str) -> Any:
    """Return Delta's own object of the table's log."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


def snapshot(spark: SparkSession, path: str, version: int | None = None) -> Any:
    """Return Delta's own object of the table, as of now or a version; version -1 if there is no table."""
    jvm: Any = spark._jvm
    log, unset = log_of(spark, path), jvm.scala.Option.empty()
    if version is not None:
        return log.getSnapshotAt(version, unset, unset, False)
    newest = _newest(spark, path, log)
    return log.update(False, unset, unset) if newest is None else newest


def _newest(spark: SparkSession, path: str, log: Any) -> Any:
    """Return a snapshot of the table's newest version, without listing the log; null if only that can tell.

    Versions have no gaps. So the known snapshot is the newest if its own commit is still the same file and
    the next one is missing; commits of other processes are added to it, one by one. Delta lists the whole
    directory instead, and so finds newer checkpoints. It has to look when one must be there: otherwise the
    snapshot would keep every commit since the one that it began with.
    """
    known = log.unsafeVolatileSnapshot()
    version = newest = int(known.version())
    if version < 0:
        return None
    segment = known.logSegment()
    written = storage.modified_ms(spark, commit_file(path, version))
    if written is None or written != int(segment.lastCommitFileModificationTimestamp()):
        return None
    last = checkpointed(segment) + CHECKPOINT_INTERVAL
    jvm: Any = spark._jvm
    while newest <= last and storage.modified_ms(spark, commit_file(path, newest + 1)) is not None:
        newest += 1
        status = storage.status(spark, commit_file(path, newest))
        management = jvm.org.apache.spark.sql.delta.SnapshotManagement
        segment = management.appendCommitToLogSegment(segment, status, newest)
    if newest > last:
        return None
    return known if newest == version else _installed(spark, log, segment)


def _installed(spark: SparkSession, log: Any, segment: Any) -> Any:
    """Make a snapshot of the log's segment the one that Delta knows, unless it knows a newer one by now."""
    none, lock = spark._jvm.scala.Option.empty(), log.snapshotLock()  # type: ignore[union-attr]
    lock.lock()
    try:
        known = log.unsafeVolatileSnapshot()
        if int(known.version()) >= int(segment.version()):
            return known
        made = log.installSnapshot(log.createSnapshot(segment, none, none, none), int(time.time() * 1000))
        known.uncache()
        return made
    finally:
        lock.unlock()


def commit_file(path: str, version: int) -> str:
    """Return where the log keeps a version's commit."""
    return f"{path}/_delta_log/{version:020}.json"


def exists(spark: SparkSession, path: str) -> bool:
    """Tell whether the path holds a Delta table: one with a commit, not just the beginnings of a log."""
    return int(snapshot(spark, path).version()) >= 0


def version_of(spark: SparkSession, path: str) -> int:
    """Return the table's current version, for `read_version`."""
    return int(snapshot(spark, path).version())


def table_id(spark: SparkSession, path: str) -> str:
    """Return the id that Delta gave the table at its creation."""
    return str(snapshot(spark, path).metadata().id())


def created_ms(spark: SparkSession, path: str) -> int:
    """Return when the table was created, in ms since the epoch; a new table at the path has another value."""
    created = snapshot(spark, path).metadata().createdTime()
    return int(created.get()) if created.isDefined() else 0


@dataclass(frozen=True)
class Metadata:
    """A table's properties and schema, from its log."""

    properties: dict[str, str]
    schema: StructType


def metadata(spark: SparkSession, path: str) -> Metadata | None:
    """Return a table's metadata, null if there is no table."""
    found = snapshot(spark, path)
    if int(found.version()) < 0:
        return None
    noted = _noted_metadata(found)
    return Metadata(noted["configuration"], StructType.fromJson(json.loads(noted["schemaString"])))


def checkpointed(segment: Any) -> int:
    """Return the version of the checkpoint that a snapshot's segment of the log begins with, -1 for none."""
    return int(segment.checkpointProvider().version())


def properties_of(snapshot: Any) -> dict[str, str]:
    """Return a table's properties as of a snapshot."""
    found: dict[str, str] = _noted_metadata(snapshot)["configuration"]
    return found


def _noted_metadata(snapshot: Any) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads(snapshot.metadata().json())["metaData"]
    return noted


def properties(spark: SparkSession, path: str) -> dict[str, str]:
    """Return the table's properties."""
    found = metadata(spark, path)
    return {} if found is None else found.properties


def files(spark: SparkSession, path: str, version: int | None = None) -> list[DataFile]:
    """Return the table's data files, as of now or of a version."""
    found = snapshot(spark, path, version)
    noted = noted_files(found)
    if noted is not None:
        return [DataFile(str(file.path()), int(file.modificationTime())) for file in noted]
    rows = DataFrame(found.allFiles().toDF(), spark).select("path", "modificationTime").collect()
    return [DataFile(row.path, row.modificationTime) for row in rows]


def size_bytes(spark: SparkSession, path: str) -> int:
    """Return the size of the table's current data files, in bytes."""
    found = snapshot(spark, path)
    checksum = found.checksumOpt()
    return int(checksum.get().tableSizeBytes() if checksum.isDefined() else found.sizeInBytes())


def noted_files(snapshot: Any, most: int = sys.maxsize) -> list[Any] | None:
    """Return Delta's own objects of the files that a version's checksum names; null if it names none.

    Null also if there are more than `most`. The checksum names all files of a table as long as they are few.
    To get them from the snapshot, Delta goes through the log in Spark jobs.
    """
    checksum = snapshot.checksumOpt()
    if not checksum.isDefined() or not checksum.get().allFiles().isDefined():
        return None
    files = checksum.get().allFiles().get()
    return elements(files) if int(files.size()) <= most else None


def frame_of(spark: SparkSession, snapshot: Any, files: Iterable[Any]) -> DataFrame:
    """Return the rows of some of a snapshot's files, given as Delta's own objects."""
    none = spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
    frame = snapshot.deltaLog().createDataFrame(snapshot, scala_seq(spark, files), False, none)
    return DataFrame(frame, spark)


def scala_seq(spark: SparkSession, values: Iterable[Any]) -> Any:
    """Return a Scala Seq of Java objects."""
    jvm: Any = spark._jvm
    found = jvm.java.util.ArrayList()
    for value in values:
        found.add(value)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()


def elements(seq: Any) -> list[Any]:
    """Return the elements of a Scala Seq."""
    return [seq.apply(place) for place in range(int(seq.size()))]


def first_version(spark: SparkSession, path: str) -> int:
    """Return the earliest version that can still be read; log retention removes earlier ones."""
    if storage.exists(spark, commit_file(path, 0)):
        return 0
    return int(log_of(spark, path).history().getEarliestRecreatableCommit())


def committed_at(spark: SparkSession, path: str, version: int) -> datetime:
    """Return when a version was committed, UTC."""
    return from_micros(int(snapshot(spark, path, version).timestamp()) * 1000)


def read_commit(spark: SparkSession, path: str, version: int) -> LogEntry:
    """Return what a version's commit did."""
    return entry_of(version, storage.read_text(spark, commit_file(path, version)))


def transactions(spark: SparkSession, path: str) -> dict[str, int]:
    """Return the last version of every application that has written to the table in transactions."""
    found = snapshot(spark, path)
    noted = _noted_transactions(found)
    if noted is not None:
        return noted
    jvm: Any = spark._jvm
    replayed = jvm.scala.jdk.javaapi.CollectionConverters.asJava(found.transactions())
    return {str(application): int(version) for application, version in replayed.items()}


def is_written(spark: SparkSession, path: str, transaction: Transaction) -> bool:
    """Tell whether the table has the transaction, so that writing it again would do nothing."""
    last = last_batch(snapshot(spark, path), transaction.application)
    return last is not None and last >= transaction.version


def last_batch(snapshot: Any, application: str) -> int | None:
    """Return the last version of an application's transactions in a snapshot; null for none."""
    noted = _noted_transactions(snapshot)
    if noted is not None:
        return noted.get(application)
    last = snapshot.transactions().get(application)
    return int(last.get()) if last.isDefined() else None


def _noted_transactions(snapshot: Any) -> dict[str, int] | None:
    """Return the transactions that the checksum of a snapshot's version names; null if there is none.

    The snapshot itself would replay the log in Spark jobs. Delta leaves transactions out of a checksum if
    they are many, and writes no checksum for commits that are not its own.
    """
    checksum = snapshot.checksumOpt()
    if not checksum.isDefined() or not checksum.get().setTransactions().isDefined():
        return None
    noted = checksum.get().setTransactions().get()
    return {str(one.appId()): int(one.version()) for one in elements(noted)}
