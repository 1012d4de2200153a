"""The steps of the four layers. Each step reads its unread rows and writes them as one micro-batch.

A step records its progress in the table that it fills (`lakehouse.engine.progress`), and needs no other state
to continue. A failed step can therefore be discarded and recreated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.common.errors import PositionError
from lakehouse.engine.layers import Allow, LayerName
from lakehouse.engine.ops_tables.data_losses import LostRange
from lakehouse.engine.progress.reading import InMemory, Reading, Taken
from lakehouse.storage import tables
from lakehouse.storage.tables import Move, Position
from lakehouse.storage.tables.commits import CHANGE_TYPE
from lakehouse.streams.definition import Stream, only

FEED_COLUMNS = (CHANGE_TYPE, "_commit_version", "_commit_timestamp")


@dataclass(frozen=True, kw_only=True)
class Permitted:
    """The run options that steps use.

    - `allow` lists the actions that are not refused.
    - `skip` lists the records that bronze does not read; if they have already landed, silver refuses them.
    - `on_notice` is called when something is allowed or skipped.
    - `adopts` lets exports continue on a copy of a lake that has already sent rows.
    - `is_backfill` means that a record is late only if retention has removed the rows to which it belongs.
    """

    allow: Collection[Allow] = ()
    skip: Collection[LostRange] = ()
    on_notice: Callable[[str], None] = lambda _text: None
    adopts: bool = False
    is_backfill: bool = False


@dataclass(frozen=True)
class BatchResult:
    """The result of a micro-batch: how many rows it read, and how many it wrote, by kind.

    `refused` is the number of rows that silver refused. `seconds` contains the time that an export spent on
    writing, by store.
    """

    rows: int
    written: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    refused: int = 0


@dataclass(frozen=True)
class Batch:
    """A micro-batch that has been chosen but not yet written.

    `count` is the number of rows, or None if it is unknown before the rows are read. `number` is the version
    of the filled table after the commit, for messages and dead letters. `moves` and `beside` are recorded
    with the rows, and `ends` contains the end positions by table name
    (`lakehouse.engine.progress.reading.Taken`). `reads` describes the input for messages. `size` is compared
    with a step's `limit`, and is 0 if the micro-batch cannot be split. `record` is the topic, partition and
    offset of the only Kafka record, or None if there are several.
    """

    rows: DataFrame
    count: int | None = None
    number: int = 0
    moves: tuple[Move, ...] = ()
    beside: tuple[tuple[Move, ...] | None, ...] = ()
    ends: Mapping[str, Position] = field(default_factory=dict)
    reads: str = ""
    size: int = 0
    record: str | None = None

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier attempt wrote part of the micro-batch."""
        return None in self.beside


@dataclass(frozen=True)
class Blamed:
    """The records that make a micro-batch fail, and advice on skipping them, as text for messages."""

    records: str
    way_out: str


@dataclass(frozen=True)
class Passed:
    """The result of a micro-batch. `rows` are the rows added to the table, or None if no step needs them."""

    result: BatchResult
    rows: InMemory | None = None


class Ticker(Protocol):
    """A step's periodic work, which can be due even without new records."""

    def is_due(self, now: datetime) -> bool:
        """Return whether there could be work to do, without reading rows from a table."""

    def tick(self, now: datetime) -> BatchResult:
        """Do the work; a second call finds nothing to do. Must not be called during a micro-batch."""


class Gate(Protocol):
    """A check that decides whether a stream's gold tables may be exported."""

    def check(self, stream: Stream, now: datetime) -> bool:
        """Check the stream's gold tables in their current state, and return whether they may be exported."""


class Step(ABC):
    """A layer's work on one table, or one export.

    `fills` is the name of the table that the step fills, layer.table, or None for an export. `merge_every_s`
    is how many seconds input may wait in a live run. `passes_on` is true if a later step reads the rows from
    memory. `limit` is a micro-batch's maximum size, in records for bronze and in file bytes for the other
    layers; None means the limit in the settings. Times are UTC.
    """

    layer: LayerName
    name: str
    fills: str | None = None
    merge_every_s: int = 0
    ticker: Ticker | None = None
    passes_on: bool = False
    limit: int | None = None

    @abstractmethod
    def plan(self, handed: Mapping[str, InMemory]) -> Batch | None:
        """Choose the next micro-batch, or return None if there is no input.

        `handed` contains rows in memory, keyed by the name of the table to which they were just appended.
        Raises PositionError if the source does not match the recorded position.
        """

    @abstractmethod
    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:
        """Write the micro-batch, and keep the rows added to its table in memory during the block."""

    @abstractmethod
    def end_here(self, filled: Collection[str]) -> None:
        """Read no further than the current end, except in tables `filled` by this run's other steps."""

    def blamed(self, batch: Batch) -> Blamed | None:  # noqa: ARG002 - most have none
        """Return the records that make a micro-batch fail, or None if unknown.

        To find the records, parts of the micro-batch may be processed again, but nothing is written.
        """
        return None

    def is_held(self) -> bool:
        """Return whether a micro-batch would wait because another process holds the table's lease."""
        return False

    def close(self) -> None:  # noqa: B027 - most have none
        """Close connections."""


class TableStep(Step):
    """A step that reads tables and fills a target table; it may fill other tables first."""

    def __init__(
        self,
        layer: LayerName,
        reading: Reading,
        combine: Callable[[Mapping[str, DataFrame]], DataFrame] = only,
    ) -> None:
        self.layer = layer
        self.name = reading.query
        self.fills = reading.target.name
        self._reading = reading
        self._combine = combine
        self._until: Mapping[str, int] = {}
        self._last: Taken | None = None

    def plan(self, handed: Mapping[str, InMemory]) -> Batch | None:
        """Choose the next micro-batch, or return None if there is no input.

        Raises PositionError if another process has filled the table since the last micro-batch, because this
        step's state, such as its watermark, is then out of date.
        """
        taken = self._reading.next(handed, self._until, self.limit)
        if taken is None:
            return None
        if self._last is not None and taken.begins not in (self._last.begins, self._last.ends):
            raise PositionError(
                f"{self.name} has continued in another process, which runs the same layer; stop one of the "
                "processes"
            )
        self._last = taken
        return self._batch(taken)

    def end_here(self, filled: Collection[str]) -> None:
        """Read no further than the current end, except in tables that are being filled."""
        spark = self._reading.spark
        self._until = {
            name: tables.version_of(spark, path)
            for name, path in self._reading.sources.items()
            if name not in filled
        }

    def _batch(self, taken: Taken) -> Batch:
        rows = _combined(self._combine, {name.partition(".")[2]: frame for name, frame in taken.rows.items()})
        return Batch(
            rows,
            taken.count,
            taken.number,
            taken.moves,
            taken.beside,
            taken.ends,
            taken.reads,
            taken.size_bytes,
        )


def _combined(
    combine: Callable[[Mapping[str, DataFrame]], DataFrame], rows: Mapping[str, DataFrame]
) -> DataFrame:
    """Combine the rows of several tables, separately for added and removed rows (`_change_type`)."""
    if not any(CHANGE_TYPE in frame.columns for frame in rows.values()):
        return combine(rows)
    parts = []
    for kind, is_gone in (("insert", False), ("delete", True)):
        side = {name: _side_of(frame, is_gone=is_gone) for name, frame in rows.items()}
        parts.append(combine(side).withColumn(CHANGE_TYPE, F.lit(kind)))
    return parts[0].unionByName(parts[1])


def _side_of(rows: DataFrame, *, is_gone: bool) -> DataFrame:
    """Return either the added or the removed rows. `rows` are appended rows or changes."""
    if CHANGE_TYPE not in rows.columns:
        return rows.where(F.lit(not is_gone))
    has_left = F.col(CHANGE_TYPE).isin("delete", "update_preimage")
    return rows.where(has_left if is_gone else ~has_left).drop(*FEED_COLUMNS)


@dataclass(frozen=True)
class StepMaker:
    """The name of a step of a stream, and a factory for the step.

    `make` creates the missing tables and output topics of the step. Each call returns a new step, which uses
    only the state recorded in tables and topics.
    """

    stream: str
    layer: LayerName
    name: str
    make: Callable[[], Step]
