"""A table's specification, value types for reads and writes, and times in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pyspark.sql.types import DataType, StructType

LEASE = "lakehouse.lease"
"""The table property that names the holder of a table's lease, which may have expired."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DELETED = "_deleted"
"""The boolean column that marks upserted rows as deletes. If null or missing, the row is kept."""

FIXED_PREFIX = "lakehouse."
"""The prefix of the properties that record the settings and shape that a table was built with."""
LANDED_AT = "ingested_at"
"""The column with a record's ingestion time (UTC). A query reads a table's initial rows in its order."""
TRUNCATED = timedelta(milliseconds=1)
"""Delta truncates the times in its statistics to milliseconds."""
FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)

_MICROSECOND = timedelta(microseconds=1)
_MARK = "lakehouse: "


@dataclass(frozen=True)
class TableSpec:
    """A table's name, schema and properties.

    Delta stores the minima and maxima of the `stats` columns. The rows depend on `pinned_settings` and on
    `shape`, which the code declares. Both are stored as table properties and checked at every start. A
    rebuild changes the settings (`lakehouse.storage.tables.making`). The `made_with` settings are stored only
    when the table is created. Maintenance clusters the rows by `cluster_by`, which is None for a table that
    remains small. If `is_followed` is true, readers of the table's appends also receive corrected rows from
    the change feed (`Why`). If `is_merged` is true, micro-batches rewrite rows; otherwise they only append.
    Catalogs show `comment`, which describes a row.
    """

    layer: str
    name: str
    schema: StructType
    stats: tuple[str, ...]
    change_feed: bool = False
    is_followed: bool = False
    pinned_settings: Mapping[str, str] = field(default_factory=dict)
    made_with: Mapping[str, str] = field(default_factory=dict)
    shape: Mapping[str, str] = field(default_factory=dict)
    cluster_by: str | None = None
    is_merged: bool = False
    comment: str = ""

    @property
    def qualified_name(self) -> str:
        """The table's SQL name, `layer.table`."""
        return f"{self.layer}.{self.name}"


@dataclass(frozen=True)
class Position:
    """The read position in a table: every version before `version` has been read.

    A query that starts with a table's existing rows first reads the files of one version, in the order of
    `entries.reading_order`. Until all these files have been read, `files` is the number read so far, and no
    other rows have been read.
    """

    version: int
    files: int | None = None

    @property
    def is_beginning(self) -> bool:
        """True while the query is still reading the table's initial rows."""
        return self.files is not None

    def is_before(self, other: Position) -> bool:
        """Return whether this position is earlier than the other, so that less has been read."""
        return self._order < other._order

    def __str__(self) -> str:
        return str(self.version) if self.files is None else f"{self.files} files of {self.version}"

    @property
    def _order(self) -> tuple[int, int]:
        # Part of version 12 sorts before all of version 12, which is position 13.
        return (2 * self.version, 0) if self.files is None else (2 * self.version + 1, self.files)


@dataclass(frozen=True)
class Progress:
    """The position up to which a table was read or sent. For sent rows, `table` is from `tables.sent_as`."""

    table: str
    position: Position

    def is_of(self, table_id: str | None) -> bool:
        """Return whether this progress belongs to the table with this id, or to an adopted copy of it."""
        return self.table.partition(" ")[0] == table_id


@dataclass(frozen=True)
class Move:
    """The change of a query's position in a source, recorded as a transaction in the commit with the rows.

    `after` is the first unread version or offset. `before` is the position that the table must have before
    the commit, or None if it must have none (`lakehouse.engine.progress.positions`). If both are equal, the
    commit only checks the position.
    """

    application: str
    before: int | None
    after: int | None


class Why(StrEnum):
    """The reason for removing or changing rows, recorded in the commit for readers of the table's changes.

    A commit that removes or changes rows without a reason comes from another writer.
    """

    CORRECTED = "corrected"
    RETAINED = "retained"
    ERASED = "erased"

    @property
    def noted(self) -> str:
        """The text in the commit's `userMetadata`."""
        return f"{_MARK}{self.value}"

    @classmethod
    def of(cls, noted: object) -> Why | None:
        """Return the reason in a commit's `userMetadata`, or None if it is not one of these reasons."""
        text = noted.removeprefix(_MARK) if isinstance(noted, str) and noted.startswith(_MARK) else ""
        return next((why for why in cls if why.value == text), None)


@dataclass(frozen=True)
class DataFile:
    """A data file of a table: its path relative to the table's path, its modification time, and its size."""

    path: str
    modified_ms: int
    size_bytes: int


def described(*columns: tuple[str, str | DataType, str]) -> StructType:
    """Return a schema. Each column is given by its name, type and catalog comment."""
    schema = StructType()
    for name, type_, comment in columns:
        schema = schema.add(name, type_, metadata={"comment": comment})
    return schema


def path_of(lake: str, layer: str, name: str) -> str:
    """Return a table's path: `<lake>/<layer>/<name>`."""
    return f"{lake.rstrip('/')}/{layer}/{name}"


def from_micros(micros: int) -> datetime:
    """Return the time (UTC) that is this number of microseconds after the epoch, without rounding."""
    return EPOCH + _MICROSECOND * micros


def shifted(moment: datetime, by: timedelta) -> datetime:
    """Return a time (UTC) shifted by a duration, limited to the years 1 to 9999."""
    try:
        return moment + by
    except OverflowError:
        return FIRST if by < timedelta(0) else LAST
