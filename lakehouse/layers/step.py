"""The common part of the four layers: a step reads its unread rows, and writes them as one micro-batch.

How far a step has come is in the table that it fills (`lakehouse.progress`), so a step knows nothing that a
new one would not find there: after a failure it is thrown away and made again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse import tables
from lakehouse.errors import PositionError
from lakehouse.ops.data_losses import LostRange
from lakehouse.progress.reading import InMemory, Reading, Taken
from lakehouse.stream import Stream, only
from lakehouse.tables import Move, Position
from lakehouse.tables.commits import CHANGE_TYPE

FEED_COLUMNS = (CHANGE_TYPE, "_commit_version", "_commit_timestamp")
LayerName = Literal["bronze", "silver", "gold", "export"]
LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold", "export")


class Allow(StrEnum):
    """What is refused unless the user allows it by name."""

    DATA_LOSS = "data-loss"
    RESEND = "resend"


@dataclass(frozen=True)
class Permitted:
    """What is not refused, which records are passed over, and who is told of what was let through.

    Bronze does not read the records in `skip`, and silver, if they have landed, does not judge them. With
    `adopts`, exports go on from a copy of the lake that has sent rows before. `is_backfill`: no record
    is late.
    """

    allow: Collection[Allow] = ()
    skip: Collection[LostRange] = ()
    notice: Callable[[str], None] = lambda _text: None
    adopts: bool = False
    is_backfill: bool = False


@dataclass(frozen=True)
class BatchResult:
    """What one micro-batch did: rows read, and rows written, by kind.

    `refused` are the rows read that silver has refused, `seconds` is how long an export's writes took, by the
    name of the store.
    """

    rows: int
    written: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    refused: int = 0


@dataclass(frozen=True)
class Batch:
    """A micro-batch that is chosen and not written yet.

    `count` is the number of rows, null where that is unknown before reading. `number` is the version that the
    table it fills gets by it, for messages and dead letters. `moves` and `beside` are noted with the rows;
    `ends` says up to where each table is read, by its name (`lakehouse.progress.reading.Taken`). `reads` says
    in words what is read. `size` is what a step's `limit` is compared with, 0 for what cannot be taken in
    smaller parts. `record` is the place of the only Kafka record that is read, if it is only one.
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
        """Whether an earlier attempt has written a part of it."""
        return None in self.beside


@dataclass(frozen=True)
class Blamed:
    """The records at which a micro-batch fails, and the way past them: both in words."""

    records: str
    way_out: str


@dataclass(frozen=True)
class Passed:
    """The result of a step's micro-batch, and the rows that it added to its table; null if not asked for."""

    result: BatchResult
    rows: InMemory | None = None


class Ticker(Protocol):
    """What a step has to do by the wall clock, even if no record comes."""

    def is_due(self, now: datetime) -> bool:
        """Tell whether there may be something to do, without looking at a table."""

    def tick(self, now: datetime) -> BatchResult:
        """Do it; a second call finds nothing to do. Must not run beside a micro-batch of the step."""


class Gate(Protocol):
    """Decides whether a stream's gold may be exported."""

    def check(self, stream: Stream, now: datetime) -> bool:
        """Look at the stream's gold tables as they are now, and return whether they may be exported."""


class Step(ABC):
    """A layer's work on one table, or one export.

    `fills` is the name of the table it fills, layer.table; null for an export. `merge_every_s`: in a live run
    its input may wait for it that long. `passes_on`: a step behind it takes its rows from memory. `limit`: so
    much it takes at most, bronze in records, others in bytes of files; null for what the settings say. Times
    are UTC.
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
        """Choose the next micro-batch; null if nothing waits.

        `handed` are rows that lie in memory, by the name of the table to which they were appended just now.
        Raises PositionError if what is to be read does not fit what was.
        """

    @abstractmethod
    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:
        """Write the micro-batch; keep the rows that it added to its table for the length of the block."""

    @abstractmethod
    def end_here(self, filled: Collection[str]) -> None:
        """Read no further than what is there now, except in tables that are being `filled` by others here."""

    def blamed(self, batch: Batch) -> Blamed | None:  # noqa: ARG002 - most have none
        """Return the records at which a micro-batch fails; null where that is unknown.

        It may try parts of the micro-batch, and writes nothing.
        """
        return None

    def is_held(self) -> bool:
        """Tell whether somebody holds the lease of its table, so that a micro-batch would wait."""
        return False

    def close(self) -> None:  # noqa: B027 - most have none
        """Close connections."""


class TableStep(Step):
    """A step that reads tables and fills another, and perhaps more before that."""

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
        """Choose the next micro-batch; null if nothing waits.

        Raises PositionError if another process has filled the table meanwhile: then what this step knows of
        the table, such as its watermark, is out of date.
        """
        taken = self._reading.next(handed, self._until, self.limit)
        if taken is None:
            return None
        if self._last is not None and taken.begins not in (self._last.begins, self._last.ends):
            raise PositionError(
                f"{self.name} has gone on in another process, which runs the same layer. Stop one"
            )
        self._last = taken
        return self._batch(taken)

    def end_here(self, filled: Collection[str]) -> None:
        """Read no further than what is there now, except in tables that are being filled."""
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
    """Combine rows of tables; where some are changes, those that have left apart, told by `_change_type`."""
    if not any(CHANGE_TYPE in frame.columns for frame in rows.values()):
        return combine(rows)
    parts = []
    for kind, is_gone in (("insert", False), ("delete", True)):
        side = {name: _side_of(frame, is_gone=is_gone) for name, frame in rows.items()}
        parts.append(combine(side).withColumn(CHANGE_TYPE, F.lit(kind)))
    return parts[0].unionByName(parts[1])


def _side_of(rows: DataFrame, *, is_gone: bool) -> DataFrame:
    """Return the rows that have come, or those that have left, of appended rows or of changes."""
    if CHANGE_TYPE not in rows.columns:
        return rows.where(F.lit(not is_gone))
    has_left = F.col(CHANGE_TYPE).isin("delete", "update_preimage")
    return rows.where(has_left if is_gone else ~has_left).drop(*FEED_COLUMNS)


@dataclass(frozen=True)
class StepMaker:
    """How a stream's step is made, and its name.

    `make` creates the step's tables and output topics where they are missing. Each call returns a new step,
    which knows only what tables and topics say.
    """

    stream: str
    layer: LayerName
    name: str
    make: Callable[[], Step]
