"""A table's specification, and the small values that reads and writes take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark.sql.types import StructType

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class TableSpec:
    """A table's name, schema and what is fixed when it is created.

    `stats` are the columns whose minima and maxima Delta keeps. The content depends on `pinned_settings`, and
    on `shape` in the code; both are kept as table properties and compared at every start. `cluster_by` is the
    column by which maintenance orders the rows, null for a table that stays small.
    """

    layer: str
    name: str
    schema: StructType
    stats: tuple[str, ...]
    change_feed: bool = False
    pinned_settings: Mapping[str, str] = field(default_factory=dict)
    shape: Mapping[str, str] = field(default_factory=dict)
    cluster_by: str | None = None

    @property
    def qualified_name(self) -> str:
        """The name in SQL: layer.table."""
        return f"{self.layer}.{self.name}"


@dataclass(frozen=True)
class Transaction:
    """Identity of one micro-batch's write: the same pair is written to a table at most once."""

    application: str
    version: int


@dataclass(frozen=True)
class DataFile:
    """A data file of a table: its path below the table's, and when it was written."""

    path: str
    modified_ms: int


def path_of(lake: str, layer: str, name: str) -> str:
    """Return a table's path: `<lake>/<layer>/<name>`."""
    return f"{lake.rstrip('/')}/{layer}/{name}"


def checkpoint_of(lake: str, query: str) -> str:
    """Return the path of a query's checkpoint: `<lake>/_checkpoints/<query>`."""
    return f"{lake.rstrip('/')}/_checkpoints/{query}"


def from_micros(micros: int) -> datetime:
    """Return the UTC time this many microseconds after the epoch, without rounding."""
    return EPOCH + _MICROSECOND * micros
