"""Delta's private members that `lakehouse.storage.tables.delta_internals` uses. An upgrade could remove them.

tests/storage/spark/test_internals.py checks each of them in the JVM.
"""

from __future__ import annotations

from lakehouse.storage.spark.members import CLASS, Member, members

DELTA = "org.apache.spark.sql.delta"
ACTIONS = f"{DELTA}.actions"
OPERATIONS = f"{DELTA}.DeltaOperations$"
SHOWING = (f"{DELTA}.commands.DescribeDeltaDetailCommand", f"{DELTA}.commands.DescribeDeltaHistory")
"""Commands that only show a table's state and history."""
_SEQ, _MAP, _OPTION = "scala.collection.immutable.Seq", "scala.collection.immutable.Map", "scala.Option"

MEMBERS = (
    *members("io.delta.package", "VERSION()"),
    *(Member(name, CLASS) for name in SHOWING),
    *members(
        f"{DELTA}.DeltaLog",
        "checkpoint()",
        f"cleanUpExpiredLogs({DELTA}.Snapshot,{_OPTION},{_OPTION},scala.Enumeration$Value)",
        f"createDataFrame({DELTA}.SnapshotDescriptor,{_SEQ},boolean,{_OPTION})",
        f"createRelation({_SEQ},{_OPTION},{_OPTION},boolean)",
        f"createSnapshot({DELTA}.LogSegment,{_OPTION},{_OPTION},{_OPTION})",
        "forTable(org.apache.spark.sql.SparkSession,java.lang.String)",
        f"getSnapshotAt(long,{_OPTION},{_OPTION},boolean)",
        "history()",
        f"installSnapshot({DELTA}.Snapshot,long)",
        "snapshotLock()",
        f"startTransaction({_OPTION},{_OPTION})",
        "unsafeVolatileSnapshot()",
        f"update(boolean,{_OPTION},{_OPTION})",
    ),
    *members(
        f"{DELTA}.SnapshotManagement",
        f"appendCommitToLogSegment({DELTA}.LogSegment,org.apache.hadoop.fs.FileStatus,long)",
    ),
    *members(
        f"{DELTA}.Snapshot",
        "allFiles()",
        "checksumOpt()",
        "deltaLog()",
        "logSegment()",
        "metadata()",
        "numOfFiles()",
        "protocol()",
        "schema()",
        "sizeInBytes()",
        "timestamp()",
        "transactions()",
        "uncache()",
        "version()",
    ),
    *members(
        f"{DELTA}.LogSegment", "checkpointProvider()", "lastCommitFileModificationTimestamp()", "version()"
    ),
    *members(f"{DELTA}.UninitializedCheckpointProvider", "version()"),
    *members(f"{DELTA}.util.JsonUtils", "mapper()"),
    *members(f"{DELTA}.VersionChecksum", "allFiles()", "numFiles()", "setTransactions()", "tableSizeBytes()"),
    *members(
        f"{DELTA}.DeltaHistoryManager",
        f"getActiveCommitAtTime(java.sql.Timestamp,{_OPTION},boolean,boolean,boolean)",
        "getEarliestRecreatableCommit()",
    ),
    *members(f"{DELTA}.DeltaHistoryManager$Commit", "getTimestamp()", "getVersion()"),
    *members(f"{DELTA}.TruncationGranularity", "HOUR()"),
    *members(
        f"{DELTA}.OptimisticTransaction",
        f"commit({_SEQ},{DELTA}.DeltaOperations$Operation)",
        f"filterFiles({_SEQ},boolean)",
        "metadata()",
        "readTxn()",
        "readVersion()",
        "readWholeTable()",
        "snapshot()",
        f"updateMetadata({ACTIONS}.Metadata,boolean)",
        f"updateMetadataForNewTable({ACTIONS}.Metadata)",
        "writeFiles(org.apache.spark.sql.Dataset)",
    ),
    *members(
        f"{ACTIONS}.Metadata",
        f"new(java.lang.String,java.lang.String,java.lang.String,{ACTIONS}.Format,java.lang.String,{_SEQ},"
        f"{_MAP},{_OPTION})",
        "configuration()",
        "createdTime()",
        "description()",
        "format()",
        "id()",
        "json()",
        "name()",
        "partitionColumns()",
        "schema()",
        "schemaString()",
    ),
    *members(f"{ACTIONS}.Format", f"new(java.lang.String,{_MAP})"),
    *members(f"{ACTIONS}.Protocol", "json()"),
    *members(f"{ACTIONS}.SetTransaction", f"new(java.lang.String,long,{_OPTION})", "appId()", "version()"),
    *members(
        f"{ACTIONS}.AddFile",
        "modificationTime()",
        "numPhysicalRecords()",
        "path()",
        "removeWithTimestamp(long,boolean)",
        "size()",
    ),
    *members(f"{ACTIONS}.Action", "json()"),
    *members(f"{ACTIONS}.Action$", "fromJson(java.lang.String)"),
    *members(f"{OPERATIONS}CreateTable", f"new({ACTIONS}.Metadata,boolean,boolean,{_OPTION})"),
    *members(f"{OPERATIONS}SetTableProperties", f"new({_MAP})"),
    *members(
        f"{OPERATIONS}StreamingUpdate",
        f"new(org.apache.spark.sql.streaming.OutputMode,java.lang.String,long,{_OPTION})",
    ),
    *members(f"{OPERATIONS}UnsetTableProperties", f"new({_SEQ},boolean)"),
    *members(f"{OPERATIONS}Update", f"new({_OPTION})"),
    *members(f"{OPERATIONS}Write", f"new({','.join(['org.apache.spark.sql.SaveMode', *[_OPTION] * 8])})"),
)
"""Every member of Delta that is used here, grouped by class."""
