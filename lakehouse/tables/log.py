"""What a table's log says: version, identity, properties, files and transactions."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakehouse import storage
from lakehouse.tables.specs import DataFile, Transaction


def snapshot(spark: SparkSession, path: str, version: int | None = None) -> Any:
    """Return Delta's own object of the table, as of now or of a version; it is -1 where there is no table."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    unset = jvm.scala.Option.empty()
    if version is None:
        return log.update(False, unset, unset)  # noqa: FBT003
    return log.getSnapshotAt(version, unset, unset, False)  # noqa: FBT003


def exists(spark: SparkSession, path: str) -> bool:
    """Tell whether a Delta table lies at the path: one with a commit, not the beginnings of its log."""
    return int(snapshot(spark, path).version()) >= 0


def version_of(spark: SparkSession, path: str) -> int:
    """Return the table's version as of now, for `read_version`."""
    return int(snapshot(spark, path).version())


def table_id(spark: SparkSession, path: str) -> str:
    """Return the id that Delta gave the table when it was made."""
    return str(snapshot(spark, path).metadata().id())


def created_ms(spark: SparkSession, path: str) -> int:
    """Return when the table was created, in ms since the epoch: another one at the same path has another."""
    created = snapshot(spark, path).metadata().createdTime()
    return int(created.get()) if created.isDefined() else 0


def properties(spark: SparkSession, path: str) -> dict[str, str]:
    """Return the table's properties."""
    jvm: Any = spark._jvm
    found = snapshot(spark, path).metadata().configuration()
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(found))


def files(spark: SparkSession, path: str, version: int | None = None) -> list[DataFile]:
    """Return the data files of the table, as of now or of a version."""
    found = DataFrame(snapshot(spark, path, version).allFiles().toDF(), spark)
    rows = found.select("path", "modificationTime").collect()
    return [DataFile(row.path, row.modificationTime) for row in rows]


def read_commit(spark: SparkSession, path: str, version: int) -> list[dict[str, Any]]:
    """Return what a version has done, in the order of its log: one action each, by its kind."""
    text = storage.read_text(spark, f"{path}/_delta_log/{version:020}.json")
    return [json.loads(line) for line in text.splitlines()]


def transactions(spark: SparkSession, path: str) -> dict[str, int]:
    """Return the last version of every application that has written to the table in transactions."""
    jvm: Any = spark._jvm
    found = jvm.scala.jdk.javaapi.CollectionConverters.asJava(snapshot(spark, path).transactions())
    return {str(application): int(version) for application, version in found.items()}


def is_written(spark: SparkSession, path: str, transaction: Transaction) -> bool:
    """Tell whether the table has the transaction's write, so that writing it again would do nothing."""
    last = last_batch(snapshot(spark, path), transaction.application)
    return last is not None and last >= transaction.version


def last_batch(snapshot: Any, application: str) -> int | None:
    """Return the last version of an application's transactions that a snapshot has; null for none."""
    last = snapshot.transactions().get(application)
    return int(last.get()) if last.isDefined() else None
