"""The only module that uses Delta's private members for logs, transactions and actions.

Each function does one thing and makes no decisions. Delta's objects are opaque to callers, which only pass
them to functions of this module. `lakehouse.storage.tables.delta_members` lists the members used here; new
ones must be added there. Spark's members are in `lakehouse.storage.spark.internals`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from lakehouse.storage.spark import internals
from lakehouse.storage.spark.internals import elements, none, scala_map, scala_seq, some, static, value_of
from lakehouse.storage.tables.delta_members import ACTIONS, DELTA, OPERATIONS

Log: TypeAlias = Any
"""Delta's DeltaLog object for a table."""
Snapshot: TypeAlias = Any
"""Delta's snapshot of a table: one version."""
Segment: TypeAlias = Any
"""The log files that make up a snapshot."""
Txn: TypeAlias = Any
"""An optimistic transaction."""
Action: TypeAlias = Any
"""An action of a commit, such as an AddFile."""
Operation: TypeAlias = Any
"""The operation recorded in a commit."""


def delta_version(spark: SparkSession) -> str:
    """Return the version of Delta in the JVM, or `unknown` if it is not available."""
    try:
        return str(static(spark, "io.delta.package").VERSION())
    except (Py4JError, TypeError):  # the method or the class is missing
        return "unknown"


# A table's log.


def log_of(spark: SparkSession, path: str) -> Log:
    """Return the log object of the table at the path, even if there is no log yet."""
    return static(spark, f"{DELTA}.DeltaLog").forTable(internals.java_session(spark), path)


def known_snapshot(log: Log) -> Snapshot:
    """Return the snapshot of the log that Delta has cached, even if it is outdated."""
    return log.unsafeVolatileSnapshot()


def newest_snapshot(spark: SparkSession, log: Log) -> Snapshot:
    """List the log, and return the newest snapshot, with version -1 if there is no table."""
    return log.update(False, none(spark), none(spark))


def snapshot_at(spark: SparkSession, log: Log, number: int) -> Snapshot:
    """Return the snapshot of a version."""
    return log.getSnapshotAt(number, none(spark), none(spark), False)


def first_recreatable(log: Log) -> int:
    """Return the earliest version that can still be reconstructed from the log."""
    return int(log.history().getEarliestRecreatableCommit())


def version_since(spark: SparkSession, log: Log, ms: int) -> int:
    """Return the log's first version that was committed at or after a time (ms since the epoch).

    If there is no such version, returns the next commit's version.
    """
    moment = internals.timestamp(spark, ms)
    stood = log.history().getActiveCommitAtTime(moment, none(spark), True, True, True)
    return int(stood.getVersion()) + (int(stood.getTimestamp()) < ms)


def write_checkpoint(log: Log) -> None:
    """Write a checkpoint of the log's newest version."""
    log.checkpoint()


def clean_up(spark: SparkSession, log: Log, snapshot: Snapshot, keep: timedelta) -> None:
    """Remove commits before a checkpoint that are older than `keep`. The cutoff is truncated to the hour."""
    keep_ms = internals.some_long(spark, int(keep / timedelta(milliseconds=1)))
    hour = static(spark, f"{DELTA}.TruncationGranularity").HOUR()
    log.cleanUpExpiredLogs(snapshot, none(spark), keep_ms, hour)


@contextmanager
def locked(log: Log) -> Iterator[None]:
    """Hold the lock on Delta's cached snapshot of the log during the block."""
    lock = log.snapshotLock()
    lock.lock()
    try:
        yield
    finally:
        lock.unlock()


def install(spark: SparkSession, log: Log, segment: Segment, at_ms: int) -> Snapshot:
    """Make Delta cache the snapshot of a segment, listed at `at_ms`. The caller must hold the lock."""
    made = log.createSnapshot(segment, none(spark), none(spark), none(spark))
    return log.installSnapshot(made, at_ms)


def uncache(snapshot: Snapshot) -> None:
    """Release the data that Spark has cached for an unused snapshot."""
    snapshot.uncache()


# The log files that make up a snapshot.


def segment_of(snapshot: Snapshot) -> Segment:
    """Return the log files that make up a snapshot."""
    return snapshot.logSegment()


def with_commit(spark: SparkSession, segment: Segment, status: Any, number: int) -> Segment:
    """Return the segment extended by the next version's commit. `status` is that file's Hadoop status."""
    return static(spark, f"{DELTA}.SnapshotManagement").appendCommitToLogSegment(segment, status, number)


def segment_version(segment: Segment) -> int:
    """Return the version of a segment's snapshot."""
    return int(segment.version())


def last_written_ms(segment: Segment) -> int:
    """Return when the last commit in a segment was written, in ms since the epoch."""
    return int(segment.lastCommitFileModificationTimestamp())


def checkpoint_version(segment: Segment) -> int:
    """Return the version of the checkpoint at the start of a segment, or -1 if there is no checkpoint."""
    return int(segment.checkpointProvider().version())


# The contents of a snapshot.


def version_of(snapshot: Snapshot) -> int:
    """Return a snapshot's version, or -1 if there is no table."""
    return int(snapshot.version())


def table_id(snapshot: Snapshot) -> str:
    """Return the table's id."""
    return str(snapshot.metadata().id())


def created_ms(snapshot: Snapshot) -> int | None:
    """Return when the table was created, in ms since the epoch, or None if unknown."""
    found = value_of(snapshot.metadata().createdTime())
    return None if found is None else int(found)


def committed_ms(snapshot: Snapshot) -> int:
    """Return when the snapshot's version was committed, in ms since the epoch."""
    return int(snapshot.timestamp())


def metadata(snapshot: Snapshot) -> dict[str, Any]:
    """Return the table's metadata, with field names as in the log."""
    found: dict[str, Any] = json.loads(snapshot.metadata().json())["metaData"]
    return found


def protocol(snapshot: Snapshot) -> dict[str, Any]:
    """Return the table's protocol, with field names as in the log."""
    found: dict[str, Any] = json.loads(snapshot.protocol().json())["protocol"]
    return found


def schema_json(snapshot: Snapshot) -> str:
    """Return the table's schema as JSON."""
    return str(snapshot.schema().json())


def files_and_bytes(snapshot: Snapshot) -> tuple[int, int]:
    """Return the number and total bytes of a snapshot's files. Runs Spark jobs if the checksum is missing."""
    noted = value_of(snapshot.checksumOpt())
    if noted is not None:
        return int(noted.numFiles()), int(noted.tableSizeBytes())
    return int(snapshot.numOfFiles()), int(snapshot.sizeInBytes())


def noted_bytes(snapshot: Snapshot) -> int | None:
    """Return the total bytes of a snapshot's files from its checksum, or None if there is no checksum."""
    noted = value_of(snapshot.checksumOpt())
    return None if noted is None else int(noted.tableSizeBytes())


def all_bytes(snapshot: Snapshot) -> int:
    """Return the total bytes of a snapshot's files. Runs Spark jobs."""
    return int(snapshot.sizeInBytes())


def noted_files(snapshot: Snapshot, most: int) -> list[Action] | None:
    """Return the files in a snapshot's checksum, or None if it lists no files at all or more than `most`."""
    noted = value_of(snapshot.checksumOpt())
    files = None if noted is None else value_of(noted.allFiles())
    return None if files is None or int(files.size()) > most else elements(files)


def all_files(spark: SparkSession, snapshot: Snapshot) -> DataFrame:
    """Return a frame with one row per file in a snapshot. Runs Spark jobs."""
    return internals.frame(spark, snapshot.allFiles().toDF())


def noted_transactions(spark: SparkSession, snapshot: Snapshot) -> dict[str, int] | None:
    """Return each application's last transaction version, or None if the checksum has no transactions."""
    found = _noted(spark, snapshot)
    return None if found is None else {str(one["appId"]): int(one["version"]) for one in found}


def noted_ms(spark: SparkSession, snapshot: Snapshot, application: str) -> int | None:
    """Return the time of the application's last transaction, in ms since the epoch, or None if unknown."""
    found = (one for one in _noted(spark, snapshot) or () if one["appId"] == application)
    return next((one.get("lastUpdated") for one in found), None)


def _noted(spark: SparkSession, snapshot: Snapshot) -> list[dict[str, Any]] | None:
    """Return the transactions in a checksum. One JSON string saves three JVM calls per transaction."""
    noted = value_of(snapshot.checksumOpt())
    found = None if noted is None else value_of(noted.setTransactions())
    if found is None:
        return None
    text = static(spark, f"{DELTA}.util.JsonUtils").mapper().writeValueAsString(found)
    return list(json.loads(str(text)))


def all_transactions(spark: SparkSession, snapshot: Snapshot) -> dict[str, int]:
    """Return the version of each application's last transaction in a snapshot. Runs Spark jobs."""
    return {str(name): int(last) for name, last in internals.entries(spark, snapshot.transactions()).items()}


def rows_of(spark: SparkSession, snapshot: Snapshot) -> DataFrame:
    """Return a snapshot's rows. Delta runs Spark jobs to select the files by their statistics."""
    # Given a path and a version, Delta would list the log to check the version. True means time travel.
    every, some_snapshot = scala_seq(spark, []), some(spark, snapshot)
    relation = snapshot.deltaLog().createRelation(every, some_snapshot, none(spark), True)
    return internals.frame_of_relation(spark, relation)


def rows_of_files(spark: SparkSession, snapshot: Snapshot, files: Iterable[Action]) -> DataFrame:
    """Return the rows in a subset of a snapshot's files."""
    chosen = scala_seq(spark, files)
    return internals.frame(spark, snapshot.deltaLog().createDataFrame(snapshot, chosen, False, none(spark)))


# Files.


def added_file(spark: SparkSession, fields: Mapping[str, Any]) -> Action:
    """Return Delta's AddFile object for fields with the names used in the log."""
    return internals.singleton(spark, f"{ACTIONS}.Action").fromJson(json.dumps({"add": fields}))


def rewritten(spark: SparkSession, text: str) -> str:
    """Return a commit's text rewritten by Delta, without actions that Delta does not know."""
    parser = internals.singleton(spark, f"{ACTIONS}.Action")
    actions = [parser.fromJson(line) for line in text.split("\n") if line.strip()]
    return "\n".join(str(action.json()) for action in actions if action is not None)


def is_added(action: Action) -> bool:
    """Return whether an action adds a file to the table, rather than to its change feed."""
    return internals.class_name(action) == "AddFile"


def path_of(file: Action) -> str:
    """Return a file's path as recorded in the log."""
    return str(file.path())


def size_of(file: Action) -> int:
    """Return a file's size in bytes."""
    return int(file.size())


def modified_ms(file: Action) -> int:
    """Return when a file was written, in ms since the epoch."""
    return int(file.modificationTime())


def records_in(file: Action) -> int | None:
    """Return a file's row count from its statistics, or None if they do not contain it."""
    found = value_of(file.numPhysicalRecords())
    return None if found is None else int(found)


def removed(file: Action, at_ms: int) -> Action:
    """Return the action that removes a file, and thus its rows, from the table."""
    return file.removeWithTimestamp(at_ms, True)


# A transaction.


def start(spark: SparkSession, log: Log, snapshot: Snapshot | None = None) -> Txn:
    """Begin a transaction on a snapshot. By default, list the log and use the newest snapshot."""
    return log.startTransaction(none(spark), none(spark) if snapshot is None else some(spark, snapshot))


def snapshot_of(txn: Txn) -> Snapshot:
    """Return the snapshot that a transaction began with."""
    return txn.snapshot()


def read_version(txn: Txn) -> int:
    """Return the version that a transaction began with, or -1 if there was no table."""
    return int(txn.readVersion())


def schema_in(txn: Txn) -> str:
    """Return the schema of a transaction's table as JSON."""
    return str(txn.metadata().schema().json())


def property_in(txn: Txn, name: str) -> str | None:
    """Return a property of a transaction's table, or None if it is not set."""
    found = value_of(txn.metadata().configuration().get(name))
    return None if found is None else str(found)


def note_read_application(txn: Txn, application: str) -> None:
    """Make the commit conflict with any other commit that records a transaction of the application."""
    txn.readTxn().append(application)


def note_whole_table_read(txn: Txn) -> None:
    """Make the commit conflict with any other commit that changes rows."""
    txn.readWholeTable()


def filtered_files(spark: SparkSession, txn: Txn, condition: Any) -> list[Action]:
    """Return the files that might contain matching rows, and mark them as read. Runs Spark jobs."""
    return elements(txn.filterFiles(scala_seq(spark, [condition]), True))  # with row counts


def write_files(txn: Txn, rows: DataFrame) -> tuple[list[Action], int | None]:
    """Write rows to files. Return the files' actions, and the number of table rows written (None if unknown).

    Uses Delta's own writer only if properties of the table or session require it, or if the jar that
    `lakehouse setup` compiles is missing.
    """
    given, plain = internals.java_frame(rows), internals.compiled(rows.sparkSession, "PlainFiles")
    written = None if plain is None else plain.write(txn, given)
    if written is not None:
        return elements(written.actions()), int(written.rows())
    files = elements(txn.writeFiles(given))
    counts = [records_in(file) for file in files if is_added(file)]
    return files, None if None in counts else sum(count or 0 for count in counts)


def commit(spark: SparkSession, txn: Txn, actions: Iterable[Action], operation: Operation) -> int:
    """Commit the actions, and return the new version. Fails if the commit conflicts with another commit."""
    return int(txn.commit(scala_seq(spark, actions), operation))


def set_properties(spark: SparkSession, txn: Txn, properties: Mapping[str, str]) -> None:
    """Replace all of the table's properties in the transaction."""
    found = txn.metadata()
    changed = static(spark, f"{ACTIONS}.Metadata")(
        found.id(),
        found.name(),
        found.description(),
        found.format(),
        found.schemaString(),
        found.partitionColumns(),
        scala_map(spark, properties),
        found.createdTime(),
    )
    txn.updateMetadata(changed, False)  # do not ignore the session's defaults


def set_new_metadata(
    spark: SparkSession,
    txn: Txn,
    *,
    table: str,
    schema: str,
    comment: str,
    properties: Mapping[str, str],
    at_ms: int,
) -> None:
    """Set a new table's id, schema (as JSON), comment and properties in the transaction."""
    parquet = static(spark, f"{ACTIONS}.Format")("parquet", scala_map(spark, {}))
    nothing, given = scala_seq(spark, []), scala_map(spark, properties)
    made = static(spark, f"{ACTIONS}.Metadata")
    txn.updateMetadataForNewTable(
        made(table, None, comment or None, parquet, schema, nothing, given, some(spark, at_ms))
    )


def application_wrote(spark: SparkSession, application: str, number: int, at_ms: int) -> Action:
    """Return the action that records an application's transaction."""
    return static(spark, f"{ACTIONS}.SetTransaction")(application, number, some(spark, at_ms))


# The operation recorded in a commit.


def update(spark: SparkSession) -> Operation:
    """Return the operation that a commit records for an UPDATE, without a condition."""
    return static(spark, f"{OPERATIONS}Update")(none(spark))


def write(spark: SparkSession) -> Operation:
    """Return the operation that a commit records for an append."""
    return static(spark, f"{OPERATIONS}Write")(internals.appends(spark), *[none(spark)] * 8)


def streaming_update(
    spark: SparkSession, application: str, number: int, *, updates: bool, metadata: str | None = None
) -> Operation:
    """Return the operation that a commit records for a micro-batch, which updates rows or only appends.

    `metadata` becomes the commit's `userMetadata`, unless it is None.
    """
    mode = internals.output_mode(spark, updates=updates)
    noted = none(spark) if metadata is None else some(spark, metadata)
    return static(spark, f"{OPERATIONS}StreamingUpdate")(mode, application, number, noted)


def property_change(spark: SparkSession, given: Mapping[str, str], unset: Iterable[str]) -> Operation:
    """Return the operation that sets the given properties or, if there are none, removes those in `unset`."""
    if given:
        return static(spark, f"{OPERATIONS}SetTableProperties")(scala_map(spark, given))
    return static(spark, f"{OPERATIONS}UnsetTableProperties")(
        scala_seq(spark, unset), True
    )  # ignore missing properties


def table_creation(spark: SparkSession, txn: Txn) -> Operation:
    """Return the operation for a transaction that creates a table."""
    return static(spark, f"{OPERATIONS}CreateTable")(txn.metadata(), False, False, none(spark))
