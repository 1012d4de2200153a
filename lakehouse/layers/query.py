"""What the four layers have in common: a streaming query, its micro-batches and their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol

from pyspark.sql import DataFrame

from lakehouse.progress import checkpoints
from lakehouse.stream import Stream, only
from lakehouse.tables import Transaction

LayerName = Literal["bronze", "silver", "gold", "export"]
LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold", "export")


class Allow(StrEnum):
    """What is refused unless the user allows it by name."""

    DATA_LOSS = "data-loss"
    RESEND = "resend"


@dataclass(frozen=True)
class BatchResult:
    """What one micro-batch did: rows read, and rows written, by kind.

    `seconds` is how long an export's writes took, by store: kafka and redis.
    """

    rows: int
    written: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Passed:
    """What a layer did with a micro-batch, and the `count` rows that it added to its table, in memory.

    It added them under the transaction.
    """

    result: BatchResult
    rows: DataFrame
    count: int
    transaction: Transaction


class Process(Protocol):
    """Writes a micro-batch idempotently, at a time (UTC), and returns what it did.

    It must read the whole frame. `count` is the number of rows, null where that is unknown before reading.
    """

    def __call__(
        self, batch: DataFrame, transaction: Transaction, now: datetime, count: int | None = None, /
    ) -> BatchResult:
        """Write the micro-batch."""


class PassOn(Protocol):
    """Does what Process does, and keeps the added rows for the length of the block."""

    def __call__(
        self, batch: DataFrame, transaction: Transaction, now: datetime, count: int | None = None, /
    ) -> AbstractContextManager[Passed]:
        """Write the micro-batch and pass its rows on."""


class Ticker(Protocol):
    """What a query has to do by the wall clock, even if no record comes."""

    def is_due(self, now: datetime) -> bool:
        """Tell whether there may be something to do, without looking at a table."""

    def tick(self, now: datetime) -> BatchResult:
        """Do it; a second call finds nothing to do. Must not run beside a micro-batch of the query."""


class Gate(Protocol):
    """Decides whether a stream's gold may be exported."""

    def is_open(self, stream: Stream, now: datetime) -> bool:
        """Look at the stream's gold tables as they are now, and decide."""


@dataclass(frozen=True)
class LayerQuery:
    """A streaming query before it runs.

    - `rows` builds the frame to read. It is called for each start, so a changed schema is picked up.
    - `process` writes a micro-batch. So does `pass_on`, null for a layer whose rows nobody reads in memory.
    - `combine` makes one micro-batch of what the queries in `reads` pass on, by table name.
    - `target` is the path of the table whose rows the checkpoint accounts for; null where a lost checkpoint
      only causes repetition. `co_targets` are further tables that it fills, by name, with the condition that
      selects its own rows.
    - `tables` are the paths of all Delta tables that it fills and reads, by name.
    - `topic` is the Kafka topic that it reads.
    - `reads` are the names of the queries that fill the tables it reads.
    - `preflight` raises CheckpointError where rows were exported under another checkpoint, unless allowed.
    - `close` closes connections, once, at the end.
    - `checkpoint` is the checkpoint's path; null for the one under its name in the lake.
    - `is_held` tells whether somebody holds the table's lease, so that a micro-batch would wait.
    - `merge_every_s`: in trips, its input may wait for it that long.
    """

    layer: LayerName
    name: str
    rows: Callable[[], DataFrame]
    process: Process
    target: str | None
    reads: tuple[str, ...] = ()
    tables: Mapping[str, str] = field(default_factory=dict)
    co_targets: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    preflight: Callable[[Collection[Allow]], None] = lambda _allow: None
    close: Callable[[], None] = lambda: None
    ticker: Ticker | None = None
    pass_on: PassOn | None = None
    combine: Callable[[Mapping[str, DataFrame]], DataFrame] = only
    checkpoint: str | None = None
    is_held: Callable[[], bool] = lambda: False
    merge_every_s: int = 0

    def application(self, query_id: str) -> str:
        """Return the name under which the query's transactions are in Delta, by its checkpoint's id."""
        return checkpoints.application_of(self.name, query_id)


@dataclass(frozen=True)
class QueryMaker:
    """How a stream's query is made, and its name.

    `make` creates the query's tables and output topics where they are missing. Each call returns a new query,
    which knows only what tables and checkpoint say.
    """

    stream: str
    name: str
    make: Callable[[], LayerQuery]
