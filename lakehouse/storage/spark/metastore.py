"""Register Delta tables by name in a Hive metastore, with the client from Spark's own jars.

Entries are identical to those that Spark's `CREATE TABLE ... USING delta LOCATION ...` creates. A metastore
never opens a table; it stores only the table's location. An entry's columns are for programs that read only
the metastore, such as JDBC clients. Delta's readers read the columns from the log.

Spark's DDL is not used, because it needs a session with Hive's catalog, which fails if the metastore is down.
Delta also refuses properties that are not in the table's log, so lakehouse could not mark its entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.common.errors import ServiceError, TableError, first_line
from lakehouse.storage.spark import internals

ANSWER_S = 5
"""The timeout, in seconds, for connecting and for each response."""
MARK = "lakehouse.registered"
"""The property that marks entries that lakehouse created. Other entries are never changed."""

_HIVE = "org.apache.hadoop.hive"
_API = f"{_HIVE}.metastore.api"
_COMMENT = "comment"
_SCHEMA = "spark.sql.sources.schema"
_PARTS = f"{_SCHEMA}.numParts"
_MOST_CHARACTERS = 4_000  # the maximum length of a property in a metastore's database
_EXCEPTIONS = re.compile(r"(?:[\w.$]+(?:Exception|Error): )+")
_ALWAYS = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta", MARK: "true"}


@dataclass(frozen=True)
class Entry:
    """A table's entry: its location, its comment, and its columns in Spark's JSON format."""

    database: str
    table: str
    location: str
    comment: str
    columns: str

    @property
    def name(self) -> str:
        """The table's SQL name."""
        return f"{self.database}.{self.table}"

    def properties(self) -> dict[str, str]:
        """Return the entry's table properties, split into parts short enough for a metastore."""
        size = _MOST_CHARACTERS
        parts = [self.columns[at : at + size] for at in range(0, len(self.columns), size)]
        numbered = {f"{_SCHEMA}.part.{number}": part for number, part in enumerate(parts)}
        return {**_ALWAYS, _COMMENT: self.comment, _PARTS: str(len(parts)), **numbered}


@dataclass(frozen=True)
class Found:
    """An entry found in a metastore. `is_ours` is true if lakehouse created it."""

    entry: Entry
    is_ours: bool


class Metastore:
    """A connection to a metastore, for one thread.

    Raises ServiceError if the metastore does not answer, and TableError if it refuses a request.
    """

    def __init__(self, spark: SparkSession, uris: str, client: Any) -> None:
        self._spark = spark
        self._uris = uris
        self._client = client

    def find(self, database: str, table: str) -> Found | None:
        """Return the entry with this name, or None if it does not exist."""
        found = self._get(database, table)
        if found is None:
            return None
        properties = dict(found.getParameters())
        parts = range(int(properties.get(_PARTS, "0")))
        entry = Entry(
            database,
            table,
            dict(found.getSd().getSerdeInfo().getParameters()).get("path", found.getSd().getLocation()),
            properties.get(_COMMENT, ""),
            "".join(properties.get(f"{_SCHEMA}.part.{number}", "") for number in parts),
        )
        return Found(entry, MARK in properties)

    def create(self, entry: Entry) -> bool:
        """Create an entry, and its database if that is missing. Return false if the name is already taken."""
        with self._asking(entry.name):
            database = self._database(entry.database)
        made = self._new("Table")
        made.setDbName(entry.database)
        made.setTableName(entry.table)
        made.setTableType("EXTERNAL_TABLE")
        made.setPartitionKeys(self._list())
        made.setSd(self._storage(f"{database.getLocationUri()}/{entry.table}-__PLACEHOLDER__"))
        made.setParameters(self._map({"spark.sql.create.version": self._spark.version}))
        self._fill(made, entry)
        with self._asking(entry.name):
            try:
                self._client.createTable(made)
            except Py4JJavaError as error:
                if _is(error, "AlreadyExistsException"):
                    return False
                raise
        return True

    def change(self, entry: Entry) -> None:
        """Change the location, comment or columns of an entry that lakehouse created."""
        standing = self._get(entry.database, entry.table)
        if standing is None:
            raise TableError(
                f"{entry.name} was removed from the metastore in the meantime; run the command again"
            )
        self._fill(standing, entry)
        with self._asking(entry.name):
            self._client.alter_table(entry.database, entry.table, standing)

    def _get(self, database: str, table: str) -> Any | None:
        with self._asking(f"{database}.{table}"):
            try:
                return self._client.getTable(database, table)
            except Py4JJavaError as error:
                if _is(error, "NoSuchObjectException"):
                    return None
                raise

    def _database(self, name: str) -> Any:
        try:
            return self._client.getDatabase(name)
        except Py4JJavaError as error:
            if not _is(error, "NoSuchObjectException"):
                raise
        made = self._new("Database")
        made.setName(name)
        made.setParameters(self._map({MARK: "true"}))
        try:
            self._client.createDatabase(made)
        except Py4JJavaError as error:
            if not _is(error, "AlreadyExistsException"):
                raise
        return self._client.getDatabase(name)

    def _storage(self, location: str) -> Any:
        """Return Spark's storage descriptor for tables that Hive cannot read; readers use its `path`."""
        serde = self._new("SerDeInfo")
        serde.setSerializationLib(f"{_HIVE}.serde2.lazy.LazySimpleSerDe")
        serde.setParameters(self._map({"serialization.format": "1"}))
        column = self._new("FieldSchema")
        column.setName("col")
        column.setType("array<string>")
        column.setComment("from deserializer")
        columns = self._list()
        columns.add(column)
        made = self._new("StorageDescriptor")
        made.setCols(columns)
        made.setLocation(location)  # the metastore creates this directory, so it must not be the table's
        made.setInputFormat("org.apache.hadoop.mapred.SequenceFileInputFormat")
        made.setOutputFormat(f"{_HIVE}.ql.io.HiveSequenceFileOutputFormat")
        made.setNumBuckets(-1)
        made.setSerdeInfo(serde)
        return made

    def _fill(self, table: Any, entry: Entry) -> None:
        for name in [name for name in table.getParameters() if name.startswith(_SCHEMA)]:
            table.getParameters().remove(name)
        for name, value in entry.properties().items():
            table.putToParameters(name, value)
        table.getSd().getSerdeInfo().putToParameters("path", entry.location)

    def _new(self, name: str) -> Any:
        return internals.static(self._spark, f"{_API}.{name}")()

    def _list(self) -> Any:
        return internals.static(self._spark, "java.util.ArrayList")()

    def _map(self, values: Mapping[str, str]) -> Any:
        made = internals.static(self._spark, "java.util.HashMap")()
        for name, value in values.items():
            made.put(name, value)
        return made

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            if _is(error, "TTransportException"):
                raise _away(self._uris, error) from None
            raise TableError(f"the metastore refuses {name}: {_why(error)}") from None


@contextmanager
def connected(spark: SparkSession, uris: str) -> Iterator[Metastore]:
    """Connect to a metastore at one of the comma-separated URIs, `thrift://host:port`.

    Hive's client reads its other properties, `spark.hadoop.hive....`, from the session. Raises ServiceError
    if no metastore answers within about ten seconds.
    """
    try:
        client = internals.metastore_client(
            spark,
            {
                "hive.metastore.uris": uris,
                "hive.metastore.client.socket.timeout": f"{ANSWER_S}s",
                "hive.metastore.connect.retries": "1",
                "hive.metastore.client.connect.retry.delay": "0s",
            },
        )
    except Py4JJavaError as error:
        raise _away(uris, error) from None
    try:
        yield Metastore(spark, uris, client)
    finally:
        client.close()


def _is(error: Py4JJavaError, name: str) -> bool:
    return internals.class_name(error.java_exception) == name


def _away(uris: str, error: Py4JJavaError) -> ServiceError:
    return ServiceError(
        f"the metastore at {uris} does not answer: {_why(error)}; check metastore (LAKEHOUSE_METASTORE)"
    )


def _why(error: Py4JJavaError) -> str:
    """Return the Hive client's message, without class names and stack traces."""
    line = first_line(error.java_exception.getMessage() or error.java_exception.toString())
    return _EXCEPTIONS.split(line)[-1].rstrip(")")
