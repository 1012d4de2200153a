"""Register tables in a Hive metastore, for clients such as Thrift servers, Spark Connect and Trino.

Each gold table, and the table of dead letters, gets an entry with the comments that the streams declare. Ops
tables are registered on request. A rerun changes nothing. Other applications' entries are never changed, and
no entry is ever removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark.sql.types import StructField, StructType

from lakehouse.common.background import beside
from lakehouse.common.errors import LakehouseError, TableError
from lakehouse.common.paths import is_local, location
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.catalog import spark_sql as catalog
from lakehouse.storage import tables
from lakehouse.storage.spark import metastore
from lakehouse.storage.spark.metastore import Entry, Found, Metastore
from lakehouse.storage.spark.query_errors import what_of
from lakehouse.storage.spark.session import activate
from lakehouse.storage.tables import Lake, TableSpec
from lakehouse.streams.definition import Stream

_EVERY_S = 15.0


class Outcome(StrEnum):
    """The possible outcomes of registering a table."""

    NEW = "new"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    NOT_MADE = "not in the lake yet"
    REFUSED = "refused"


@dataclass(frozen=True)
class Registered:
    """The outcome of registering one table. `about` is what has changed, or the reason for a refusal."""

    table: str
    outcome: Outcome
    about: str = ""


def specs(streams: Sequence[Stream], *, ops: bool = False) -> list[TableSpec]:
    """Return the tables to register."""
    layers = ("gold", "ops") if ops else ("gold",)
    return [spec for spec in catalog.specs(streams) if spec.layer in layers or spec == DEAD_LETTERS]


def sync_names(
    lake: Lake, wanted: Sequence[TableSpec], uris: str, *, moves: bool = False
) -> Iterator[Registered]:
    """Register the tables in a metastore one by one, and yield each outcome.

    With `moves`, a table that is registered at another location gets the new location. Without `moves`, it
    is refused. Raises ServiceError if the metastore does not answer.
    """
    with metastore.connected(lake.spark, uris) as names:
        for spec in wanted:
            try:
                yield _register(lake, spec, names, moves=moves)
            except TableError as error:
                yield Registered(spec.qualified_name, Outcome.REFUSED, str(error))


def _register(lake: Lake, spec: TableSpec, names: Metastore, *, moves: bool) -> Registered:
    entry = _entry(lake, spec)
    if entry is None:
        return Registered(spec.qualified_name, Outcome.NOT_MADE)
    found = names.find(entry.database, entry.table)
    if found is None:
        if names.create(entry):
            return Registered(entry.name, Outcome.NEW)
        found = names.find(entry.database, entry.table)  # another process has just created it
    registered = compare(entry, found, moves=moves)
    if registered.outcome is Outcome.CHANGED:
        names.change(entry)
    return registered


def compare(entry: Entry, found: Found | None, *, moves: bool) -> Registered:
    """Compare a table's entry with the existing metastore entry of the same name, and return the outcome."""
    if found is None or not found.is_ours:
        return Registered(
            entry.name,
            Outcome.REFUSED,
            f"{entry.name} in the metastore was not created by lakehouse and is left unchanged. Rename or "
            "drop it there, then rerun",
        )
    there = found.entry
    if there.location != entry.location and not moves:
        return Registered(
            entry.name,
            Outcome.REFUSED,
            f"{entry.name} is registered at {there.location}, but this lake has it at {entry.location}. "
            "`lakehouse sync-names --move` updates the location",
        )
    changed = [
        what for what in ("location", "comment", "columns") if getattr(there, what) != getattr(entry, what)
    ]
    return Registered(entry.name, Outcome.CHANGED if changed else Outcome.UNCHANGED, ", ".join(changed))


def _entry(lake: Lake, spec: TableSpec) -> Entry | None:
    """Return a table's metastore entry, or None if the table does not exist yet."""
    if not lake.exists(spec.layer, spec.name):
        return None
    path = lake.path(spec.layer, spec.name)
    columns = with_comments(tables.schema_of(lake.spark, path), spec.schema)
    return Entry(spec.layer, spec.name, address(path), spec.comment, columns.json())


def with_comments(standing: StructType, declared: StructType) -> StructType:
    """Return the existing columns with the declared comments. Undeclared columns keep their comments."""
    ours: Mapping[str, StructField] = {column.name: column for column in declared}
    return StructType([_commented(column, ours.get(column.name, column)) for column in standing])


def _commented(column: StructField, declared: StructField) -> StructField:
    comment = declared.metadata.get("comment")
    metadata = {} if comment is None else {"comment": comment}
    return StructField(column.name, column.dataType, column.nullable, metadata)


def address(path: str) -> str:
    """Return a table's path as a URL, as metastore clients require."""
    return f"file://{location(path)}" if is_local(path) else path


@contextmanager
def registering(
    lake: Lake, streams: Sequence[Stream], uris: str, on_notice: Callable[[str], None]
) -> Iterator[None]:
    """Register new tables and changed columns in the metastore during the block.

    A background thread checks every 15 s. A failure is reported once, and the registration is retried. A
    failure delays nothing else.
    """
    own = replace(lake, spark=lake.spark.newSession())
    keeper = _Keeper(own, specs(streams), uris, on_notice)

    def keep(ended: threading.Event) -> None:
        activate(own.spark)
        keeper.look()
        while not ended.wait(_EVERY_S):
            keeper.look()

    with beside("names", keep, patience_s=3 * metastore.ANSWER_S):
        yield


class _Keeper:
    """A background task that registers tables and reports each problem once. Not thread-safe."""

    def __init__(
        self, lake: Lake, wanted: Sequence[TableSpec], uris: str, on_notice: Callable[[str], None]
    ) -> None:
        self._lake = lake
        self._wanted = wanted
        self._uris = uris
        self._on_notice = on_notice
        self._told: dict[str, str] = {}

    def look(self) -> None:
        """Register new and changed tables."""
        try:
            for one in sync_names(self._lake, self._wanted, self._uris):
                self._tell(one)
            self._told.pop("", None)
        except Exception as error:  # noqa: BLE001 - if the thread ended, tables would stay unregistered
            self._once("", f"names in the metastore are not up to date: {_line(error)}")

    def _tell(self, one: Registered) -> None:
        if one.outcome is Outcome.REFUSED:
            self._once(one.table, f"names in the metastore are not up to date: {one.about}")
        else:
            self._told.pop(one.table, None)
        if one.outcome in (Outcome.NEW, Outcome.CHANGED):
            about = f" ({one.about})" if one.about else ""
            self._on_notice(f"{one.table} is registered in the metastore: {one.outcome}{about}")

    def _once(self, about: str, text: str) -> None:
        if self._told.get(about) != text:
            self._on_notice(text)
        self._told[about] = text


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, LakehouseError) else what_of(error)
