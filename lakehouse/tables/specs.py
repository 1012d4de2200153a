"""What a table is before it is made, and the small values that reads and writes take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark.sql.types import StructType

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class TableSpec:
    """A table's name, schema and what is fixed about it when it is created.

    `stats` are the columns Delta keeps minima and maxima of; `pinned_settings` are settings that the content
    depends on and `shape` what it depends on in the code, kept as table properties and compared on every
    start.
    """

    layer: str
    name: str
    schema: StructType
    stats: tuple[str, ...]
    change_feed: bool = False
    pinned_settings: Mapping[str, str] = field(default_factory=dict)
    shape: Mapping[str, str] = field(default_factory=dict)

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
class DataFile:
    """A data file of a table: its path below the table's, and when it was written."""

    path: str
    modified_ms: int


def path_of(lake: str, layer: str, name: str) -> str:
    """Return where a table lies: `<lake>/<layer>/<name>`."""
    return f"{lake.rstrip('/')}/{layer}/{name}"


def checkpoint_of(lake: str, query: str) -> str:
    """Return where the checkpoint of a query lies: `<lake>/_checkpoints/<query>`."""
    return f"{lake.rstrip('/')}/_checkpoints/{query}"


def from_micros(micros: int) -> datetime:
    """Return the UTC time that lies so many microseconds after the epoch, without rounding."""
    return EPOCH + _MICROSECOND * micros
