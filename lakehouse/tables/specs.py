"""A table's specification, the small values that reads and writes take, and moments in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pyspark.sql.types import DataType, StructType

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DELETED = "_deleted"
"""The boolean column by which rows that are upserted mark those to delete; null or absent: they stay."""

FIXED_PREFIX = "lakehouse."
"""How the names of the properties begin that say what a table was made with."""
LANDED_AT = "ingested_at"
"""The column with the time (UTC) at which a record landed: a table is first read in this order."""
TRUNCATED = timedelta(milliseconds=1)
"""Delta cuts the times in its statistics to whole milliseconds."""
FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)

_MICROSECOND = timedelta(microseconds=1)
_MARK = "lakehouse: "


@dataclass(frozen=True)
class TableSpec:
    """A table's name, schema and what is fixed when it is created.

    `stats` are the columns whose minima and maxima Delta keeps. The content depends on `pinned_settings`, and
    on `shape` in the code; both are kept as table properties and compared at every start. A rebuild changes
    the settings (`lakehouse.tables.pinned`). `made_with` are settings that are kept so as well, as they are
    when the table is made. `cluster_by` is the column by which maintenance orders the rows, null for a table
    that stays small. `is_followed`: who reads the appends of a table with a change feed also follows the rows
    that are corrected (`Why`). `is_merged`: micro-batches rewrite rows; into any other table they only
    append. `comment` says what a row is; catalogs show it.
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
        """The name in SQL: layer.table."""
        return f"{self.layer}.{self.name}"


@dataclass(frozen=True)
class Position:
    """How far a table has been read: every version before `version`.

    A query that begins with the rows of a table reads the files of one version first, in the order of
    `entries.reading_order`: then `files` of that version have been read, and nothing else.
    """

    version: int
    files: int | None = None

    @property
    def is_beginning(self) -> bool:
        """Whether the query is still reading the rows with which it begins."""
        return self.files is not None

    def is_before(self, other: Position) -> bool:
        """Tell whether less has been read than in the other position."""
        return self._order < other._order

    def __str__(self) -> str:
        return str(self.version) if self.files is None else f"{self.files} files of {self.version}"

    @property
    def _order(self) -> tuple[int, int]:
        # The first files of version 12 come before all of it, which is position 13.
        return (2 * self.version, 0) if self.files is None else (2 * self.version + 1, self.files)


@dataclass(frozen=True)
class Progress:
    """How far a table has been read or sent: by its id or, of rows that were sent, by `tables.sent_as`."""

    table: str
    position: Position

    def is_of(self, table_id: str | None) -> bool:
        """Tell whether it is of the table with this id, before or after a copy of it was adopted."""
        return self.table.partition(" ")[0] == table_id


@dataclass(frozen=True)
class Move:
    """How far a query has read one of its sources, as the commit with the rows notes it in a transaction.

    `after` is the first version, or offset, that has not been read; `before` is what the table must say until
    then, null for nothing (`lakehouse.progress.positions`). If both are the same, the commit only expects it.
    """

    application: str
    before: int | None
    after: int | None


class Why(StrEnum):
    """Why rows of a table leave it or change, as the commit says it to who reads the table's changes.

    A commit that removes or changes rows and says nothing is of another writer.
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
        """Return the reason in a commit's `userMetadata`; null if there is none of ours."""
        text = noted.removeprefix(_MARK) if isinstance(noted, str) and noted.startswith(_MARK) else ""
        return next((why for why in cls if why.value == text), None)


@dataclass(frozen=True)
class DataFile:
    """A data file of a table: its path below the table's, when it was written, and its size."""

    path: str
    modified_ms: int
    size_bytes: int


def described(*columns: tuple[str, str | DataType, str]) -> StructType:
    """Return a schema of columns, each given by its name, its type and the comment that catalogs show."""
    schema = StructType()
    for name, type_, comment in columns:
        schema = schema.add(name, type_, metadata={"comment": comment})
    return schema


def path_of(lake: str, layer: str, name: str) -> str:
    """Return a table's path: `<lake>/<layer>/<name>`."""
    return f"{lake.rstrip('/')}/{layer}/{name}"


def from_micros(micros: int) -> datetime:
    """Return the UTC time this many microseconds after the epoch, without rounding."""
    return EPOCH + _MICROSECOND * micros


def shifted(moment: datetime, by: timedelta) -> datetime:
    """Return the moment (UTC) this much later, limited to the years 1 to 9999."""
    try:
        return moment + by
    except OverflowError:
        return FIRST if by < timedelta(0) else LAST
