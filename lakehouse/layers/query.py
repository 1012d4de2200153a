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
    """What is refused unless it is allowed by name."""

    DATA_LOSS = "data-loss"
    RESEND = "resend"


@dataclass(frozen=True)
class BatchResult:
    """What one micro-batch did: rows read, and rows written by what they became.

    `seconds` is how long writing took, by the store: kafka and redis, of an export.
    """

    rows: int
    written: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Passed:
    """What a layer did of a micro-batch, and the `count` rows that it added to its table, in memory.

    It added them under the transaction.
    """

    result: BatchResult
    rows: DataFrame
    count: int
    transaction: Transaction


class Process(Protocol):
    """Writes a micro-batch idempotently, at a time (UTC), and says what it did; it must read the whole frame.

    `count` is how many rows there are, null where that is not known before they are read.
    """

    def __call__(
        self, batch: DataFrame, transaction: Transaction, now: datetime, count: int | None = None, /
    ) -> BatchResult:
        """Write the micro-batch."""


class PassOn(Protocol):
    """Does what Process does, and keeps the rows that it has added for the length of the block."""

    def __call__(
        self, batch: DataFrame, transaction: Transaction, now: datetime, count: int | None = None, /
    ) -> AbstractContextManager[Passed]:
        """Write the micro-batch and pass its rows on."""


class Ticker(Protocol):
    """What a query has to do by the wall clock, though no record comes."""

    def is_due(self, now: datetime) -> bool:
        """Tell whether there may be something to do, without looking at a table."""

    def tick(self, now: datetime) -> BatchResult:
        """Do it; a second call finds nothing left. Must not run beside a micro-batch of the query."""


class Gate(Protocol):
    """What decides whether a stream's gold may leave."""

    def is_open(self, stream: Stream, now: datetime) -> bool:
        """Look at the stream's gold tables as they are, and tell."""


@dataclass(frozen=True)
class LayerQuery:
    """A streaming query before it runs.

    `rows` makes the frame to read, anew each time: a table that has got another schema is read with that one.
    `process` writes a micro-batch; so does `pass_on`, null for a layer that nobody reads in memory. `combine`
    makes one micro-batch of what the queries that it `reads` pass on, by the name of the table. `target` is
    the path of the table whose rows the checkpoint accounts for, null where a lost checkpoint costs nothing
    but repetition; `co_targets` are the tables that it fills beside that one, by name, with the condition
    that selects the rows that are its own. `tables` are the paths of all Delta tables that it fills and
    reads, by name, and `topic` is the Kafka topic that it reads. `reads` are the names of the queries that
    fill what this one reads. `preflight` raises CheckpointError where what has left already is not its own,
    unless that is allowed. `close` lets go of connections, once, at the end. `checkpoint` is where its
    checkpoint lies, null for under its name in the lake. `is_held` tells whether somebody holds the table, so
    that a micro-batch would wait. What it reads may wait for it for `merge_every_s` seconds in a trip.
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
    """How a query of a stream comes to be, under the name that it will have.

    `make` makes the query's tables, and the topics that it sends to, where they are missing. It returns the
    query anew each time: one that knows nothing but what tables and checkpoint say.
    """

    stream: str
    name: str
    make: Callable[[], LayerQuery]
