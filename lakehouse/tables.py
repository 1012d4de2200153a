"""The only module that creates, reads, appends to or merges Delta tables.

A table lies at `<lake>/<layer>/<table>`. Every write from a micro-batch carries a transaction: an
application id (the streaming query's) and a version (the batch's number). Delta remembers the last version
of each application in the table's log and skips one that it has, so a retried micro-batch writes once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.errors import TableError
from lakehouse.stream import DELETED

FIXED_PREFIX = "lakehouse."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ATTEMPTS = 5
_PAUSE_S = 0.5

# Other readers open the tables, so nothing that only Spark understands; and a checkpoint of the log every
# ten commits, Delta's default, takes seconds that a table written every second does not have.
_COMMON_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "100",
    "delta.checkpoint.writeStatsAsStruct": "true",
}


@dataclass(frozen=True)
class TableSpec:
    """A table's name, schema and what is fixed about it when it is created.

    `stats` are the columns Delta keeps minima and maxima of; `fixed` are settings that the content depends
    on, kept as table properties and compared on every start.
    """

    layer: str
    name: str
    schema: StructType
    stats: tuple[str, ...]
    change_feed: bool = False
    fixed: Mapping[str, str] = field(default_factory=dict)

    @property
    def qualified_name(self) -> str:
        """The name in SQL: layer.table."""
        return f"{self.layer}.{self.name}"


@dataclass(frozen=True)
class Transaction:
    """Identity of one micro-batch's write: the same pair is written at most once to a table."""

    application: str
    version: int


@dataclass(frozen=True)
class Span:
    """The values of a timestamp column that some rows lie within, both ends included, UTC."""

    column: str
    first: datetime
    last: datetime


def path_of(lake: str, layer: str, name: str) -> str:
    """Return where a table lies: `<lake>/<layer>/<name>`."""
    return f"{lake.rstrip('/')}/{layer}/{name}"


def ensure(spark: SparkSession, lake: str, spec: TableSpec) -> str:
    """Create the table where it is not there yet and return its path; a rerun changes nothing.

    Raises TableError where it cannot be created, as where a creation that was killed has left the beginnings
    of a log, and where it was made under other values of the settings it depends on.
    """
    path = path_of(lake, spec.layer, spec.name)
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(spec.schema)
    properties = _COMMON_PROPERTIES | {
        "delta.enableChangeDataFeed": str(spec.change_feed).lower(),
        "delta.dataSkippingStatsColumns": ",".join(spec.stats),
    }
    properties |= {FIXED_PREFIX + name: value for name, value in spec.fixed.items()}
    for name, value in properties.items():
        builder = builder.property(name, value)
    left = _ATTEMPTS
    while not exists(spark, path):
        left -= 1
        try:
            builder.execute()
        except PySparkException as error:  # another job may be creating it at this moment
            if not left:
                raise TableError(
                    f"{spec.qualified_name} could not be created, and there is no table at {path}: "
                    f"{str(error).splitlines()[0]} If a job was killed while it created the table, "
                    f"remove {path} and run again"
                ) from error
            time.sleep(_PAUSE_S)
    _refuse_other_settings(spark, path, spec)
    return path


def exists(spark: SparkSession, path: str) -> bool:
    """Tell whether a Delta table lies at the path: one with a commit, not the beginnings of its log."""
    return int(_snapshot(spark, path).version()) >= 0


def register(spark: SparkSession, spec: TableSpec, path: str) -> None:
    """Make a table known to the session's catalog as layer.table; nothing is written to the lake."""
    location = path.replace("'", "\\'")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {spec.layer}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {spec.qualified_name} USING DELTA LOCATION '{location}'")


def read(spark: SparkSession, path: str) -> DataFrame:
    """Return the table's rows as of now."""
    return spark.read.format("delta").load(path)


def read_version(spark: SparkSession, path: str, version: int) -> DataFrame:
    """Return the table's rows as of a version."""
    return spark.read.format("delta").option("versionAsOf", version).load(path)


def read_stream(spark: SparkSession, path: str, *, max_bytes: str) -> DataFrame:
    """Return the table's appended rows as a stream, in micro-batches of about `max_bytes` of files."""
    return spark.readStream.format("delta").option("maxBytesPerTrigger", max_bytes).load(path)


def read_change_stream(spark: SparkSession, path: str, *, max_bytes: str) -> DataFrame:
    """Return the table's change feed as a stream: its rows plus _change_type and _commit_version."""
    reader = spark.readStream.format("delta").option("readChangeFeed", "true")
    return reader.option("maxBytesPerTrigger", max_bytes).load(path)


def is_written(spark: SparkSession, path: str, transaction: Transaction) -> bool:
    """Tell whether the table has the transaction's write, so that writing it again would do nothing."""
    last = _snapshot(spark, path).transactions().get(transaction.application)
    return bool(last.isDefined()) and int(last.get()) >= transaction.version


def _snapshot(spark: SparkSession, path: str) -> Any:
    """Return Delta's own object of the table as of now; its version is -1 where there is no table."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    unset = jvm.scala.Option.empty()
    return log.update(False, unset, unset)  # noqa: FBT003


def append(rows: DataFrame, path: str, transaction: Transaction) -> None:
    """Append the rows once: a second call with the same transaction does nothing."""
    (
        rows.write.format("delta")
        .mode("append")
        .option("txnAppId", transaction.application)
        .option("txnVersion", transaction.version)
        .save(path)
    )


def append_counted(rows: DataFrame, path: str, transaction: Transaction) -> int:
    """Append the rows once, as `append` does, and return how many: 0 where they had been written before."""
    if is_written(rows.sparkSession, path, transaction):
        return 0  # Delta would skip the write without reading a row, and the observation would never come
    observation = Observation()
    append(rows.observe(observation, F.count(F.lit(1)).alias("rows")), path, transaction)
    return int(observation.get["rows"])


def upsert(
    rows: DataFrame, path: str, keys: Sequence[str], span: Span | None, transaction: Transaction
) -> None:
    """Merge the rows by key once: matched rows are replaced, others inserted; those marked DELETED leave.

    `rows` has one row a key and is read twice, so it should be persisted; `span` is where they lie, which
    spares files. A second call with the same transaction does nothing. Must be called with rows of the
    micro-batch's own session, because the transaction travels as that session's configuration.
    """
    spark = rows.sparkSession
    condition = reduce(Column.__and__, (F.col(f"t.{key}") == F.col(f"s.{key}") for key in keys))
    if span is not None:
        condition &= F.col(f"t.{span.column}").between(F.lit(span.first), F.lit(span.last))
    marked = DELETED in rows.columns
    columns: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in rows.columns if name != DELETED}
    merge = DeltaTable.forPath(spark, path).alias("t").merge(rows.alias("s"), condition)
    stays = F.lit(True)  # noqa: FBT003
    if marked:
        stays = ~F.coalesce(f"s.{DELETED}", F.lit(False))  # noqa: FBT003
        merge = merge.whenMatchedDelete(~stays)
    merge = merge.whenMatchedUpdate(set=columns).whenNotMatchedInsert(stays, columns)
    with _in_transaction(spark, transaction):
        _again_on_conflict(merge.execute)


def update(spark: SparkSession, path: str, where: Column, values: Mapping[str, Column]) -> None:
    """Set columns in the rows that `where` selects; it is for the caller to see that a rerun finds none."""
    table = DeltaTable.forPath(spark, path)
    _again_on_conflict(lambda: table.update(where, dict(values)))


def clear(spark: SparkSession, path: str, columns: Sequence[str], where: Column) -> int:
    """Set columns to null in the rows that `where` selects and return how many; a rerun finds none."""
    spent = where & F.col(columns[0]).isNotNull()
    rows = read(spark, path).where(spent).count()
    if rows:
        update(spark, path, spent, dict.fromkeys(columns, F.lit(None)))
    return rows


def _again_on_conflict(write: Callable[[], object]) -> None:
    """Write, and again where another writer has come first: a layer and maintenance share a table."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            write()
        except DeltaConcurrentModificationException:
            if not left:
                raise
        else:
            return


@contextlib.contextmanager
def _in_transaction(spark: SparkSession, transaction: Transaction) -> Iterator[None]:
    spark.conf.set("spark.databricks.delta.write.txnAppId", transaction.application)
    spark.conf.set("spark.databricks.delta.write.txnVersion", str(transaction.version))
    try:
        yield
    finally:
        spark.conf.unset("spark.databricks.delta.write.txnAppId")
        spark.conf.unset("spark.databricks.delta.write.txnVersion")


class Greatest:
    """The greatest value of a timestamp column, UTC, in a table that nothing else appends to meanwhile.

    Read from the table once, and then kept up with what its one writer writes: Delta's file statistics
    truncate timestamps, so that asking the table reads the column. Rows of the last day are looked at
    first, for which the statistics do spare files.
    """

    def __init__(self, path: str, column: str) -> None:
        self._path = path
        self._column = column
        self._known = False
        self._value: datetime | None = None

    def value(self, spark: SparkSession) -> datetime | None:
        """Return the greatest value, None for an empty table."""
        if not self._known:
            rows = read(spark, self._path)
            recent = rows.where(F.col(self._column) > F.lit(datetime.now(UTC) - timedelta(days=1)))
            self._value = self._max(recent) or self._max(rows)
            self._known = True
        return self._value

    def advance(self, value: datetime) -> None:
        """Take note of a value that has been written."""
        self._value = value if self._value is None else max(self._value, value)

    def _max(self, rows: DataFrame) -> datetime | None:
        row = rows.agg(F.unix_micros(F.max(self._column)).alias("micros")).first()
        return None if row is None or row.micros is None else from_micros(row.micros)


def from_micros(micros: int) -> datetime:
    """Return the UTC time that lies so many microseconds after the epoch, without rounding."""
    return _EPOCH + _MICROSECOND * micros


def _refuse_other_settings(spark: SparkSession, path: str, spec: TableSpec) -> None:
    if not spec.fixed:
        return
    properties = _snapshot(spark, path).metadata().configuration()
    for name, value in spec.fixed.items():
        key = FIXED_PREFIX + name
        found = properties.apply(key) if properties.contains(key) else None
        if found != value:
            raise TableError(
                f"{spec.qualified_name} was made with {name} = {found}, the settings say {value}; its rows "
                f"depend on it. Set LAKEHOUSE_{name.upper()}={found} again, or use another LAKEHOUSE_LAKE "
                f"and fill it anew"
            )
