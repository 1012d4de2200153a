"""The port for sinks: what the export asks of a store that gets the rows of gold, and what a store promises.

    registry.py ── SinkKind ── make(Exported) ──> Sink          every store but one
                   LeadKind ── make(Exported) ──> Lead          the store that a micro-batch waits for

A micro-batch goes to its lead first: if that fails, the step fails, and the same micro-batch comes again. No
sink is waited for. If it fails, the lake notes that it is behind, and it is filled again by the clock, so a
store that is away holds up no other. The export's position is noted in the lake after all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession

from lakehouse import tables
from lakehouse.settings import Settings
from lakehouse.sinks.change import Change, Span
from lakehouse.sinks.outgoing import as_inserted, filter_leaving, filter_newest
from lakehouse.sinks.sizes import UnsentRow
from lakehouse.stream import MergedTable
from lakehouse.tables import Lake, Position, Progress

Example = tuple[dict[str, Any], str]
"""A difference: the row's key, by the names of its parts, and what is wrong with it."""


class Promise(Enum):
    """What a store promises of rows that are sent again."""

    VERSIONED = "at least once; each row has its version, and an older one never replaces a newer one"
    EXACTLY_ONCE = "exactly once; the position is stored in the transaction of the rows"


@dataclass(frozen=True)
class Exported:
    """A gold table that is exported: its place, its settings, and the receivers of its notices.

    `notice` gets lines for the user. `note_unsent` gets rows that a store will not take, now or later, with
    the store's name for the place, and the time (UTC).
    """

    lake: Lake
    path: str
    table: MergedTable
    settings: Settings
    notice: Callable[[str], None] = lambda _text: None
    note_unsent: Callable[[str, Sequence[UnsentRow], datetime], None] = lambda _place, _rows, _now: None

    @property
    def spark(self) -> SparkSession:
        """The session of the export."""
        return self.lake.spark

    @property
    def name(self) -> str:
        """The step's name, for messages."""
        return f"export.{self.table.name}"

    @cached_property
    def generation(self) -> int:
        """When the table's versions became its own, in ms since the epoch."""
        return tables.generation_ms(self.spark, self.path)

    @cached_property
    def sent_as(self) -> str:
        """What positions call the table."""
        return tables.sent_as(self.spark, self.path)

    def standing_at(self, version: int) -> DataFrame:
        """Return the rows that leave as of a version, as what `outgoing` takes."""
        at = tables.committed_at(self.spark, self.path, version)
        rows = as_inserted(tables.read_version(self.spark, self.path, version), version, at)
        return filter_leaving(rows, self.table)

    def changed_between(self, first: int, end: int) -> DataFrame:
        """Return the newest state of rows that leave and were changed from version `first` on, before `end`.

        Reading it fails where VACUUM has removed their files.
        """
        changes = tables.read_changes(self.spark, self.path, first, end - 1)
        return filter_leaving(filter_newest(changes, self.table), self.table)


@dataclass(frozen=True)
class Sending:
    """A micro-batch that is sent: which changes of the table, and when (UTC).

    `is_first`: nothing of the table has been sent before. `begins_anew`: its rows are others than those that
    an earlier attempt had, because VACUUM has removed changes. `is_large`: its rows do not fit in memory.
    """

    span: Span
    now: datetime
    is_first: bool = False
    begins_anew: bool = False
    is_large: bool = False


class Sink(Protocol):
    """The rows of one gold table in a store. For one thread, and one micro-batch at a time.

    Where the store is out of reach, full or refuses, methods raise SinkTroubleError, one line without
    passwords. After that the sink is filled before it gets another micro-batch.
    """

    name: str

    def begin(self, sending: Sending) -> None:
        """Begin a micro-batch; whatever had begun and has not ended is given up."""

    def write(self, changes: Sequence[Change]) -> None:
        """Take the next rows of it; a store without transactions may show them at once."""

    def end(self) -> int:
        """Make them visible; return how many rows have changed in the store, 0 if it had all of them."""

    def lacks_rows(self) -> bool:
        """Tell whether rows are missing that the store had; asked often, so false while it is away."""

    def require(self) -> None:
        """Raise SinkTroubleError unless the store answers at once."""

    def fill(self, reached: Position | None, now: datetime) -> int:
        """Send what the store lacks of the rows that have been sent, and return how many that were.

        `reached` is how far the table has been sent, null for not at all.
        """

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class Slice:
    """Rows that are done with the lead: how many were sent just now, and which it refuses for good."""

    changes: Sequence[Change]
    sent: int = 0
    refused: tuple[UnsentRow, ...] = ()


class Lead(Protocol):
    """The store that a micro-batch waits for: its transactions hold the position by which the step goes on.

    `name` is the store's, `place` that of the table's rows in it. Raises ServiceError if the store is out of
    reach, and PositionError if another export has sent something else meanwhile.
    """

    name: str
    place: str

    def sent(self) -> Progress | None:
        """Return how far the table has been sent; null before the first time."""

    def begun(self) -> Span | None:
        """Return the last micro-batch of which a part was committed by itself; null for none."""

    def send(self, changes: Iterable[Change], sending: Sending) -> Iterator[Slice]:
        """Send the rows in order, and yield them, slice by slice, each after its commit."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class Findings:
    """What an audit has found: how many rows it compared, how many differ, some of these, and notes.

    `not_compared` says which rows it should have compared and could not, and why. It is not clean then.
    """

    compared: int = 0
    differences: int = 0
    examples: Sequence[Example] = ()
    notes: Sequence[str] = ()
    not_compared: Sequence[str] = ()


@dataclass(frozen=True)
class Audited:
    """What an audit compares with a store: a gold table, and the version up to which it has been sent.

    `now` is UTC. `rows_at` returns the table's rows as of a version, or the last one with the same rows.
    """

    exported: Exported
    version: int
    now: datetime
    rows_at: Callable[[int], DataFrame]


@dataclass(frozen=True)
class Unsent:
    """What ops.unsent_rows has of a table and a place: rows that were too large, or changes that are gone."""

    rows: DataFrame
    has_removed: bool


@dataclass(frozen=True)
class AuditedLead:
    """What an audit compares with the lead's place: a gold table, and what the lake knows of it.

    noted        how far it has been sent by the note in the lake; null for not at all
    version_of   the version that a position stands for, the newest with the same rows; null for none
    unsent       what was not sent to the place; null for nothing
    copied_from  the lake that this one is a copy of; null for none
    """

    exported: Exported
    place: str
    noted: Progress | None
    version_of: Callable[[Position], int | None]
    unsent: Callable[[], Unsent | None]
    copied_from: str | None


@dataclass(frozen=True)
class SinkKind:
    """A store that gold can be exported to, for code that knows none by name.

    name        its name in `Export.sinks`, in lines and in metrics
    label       its name for people
    promise     what it promises of rows that are sent again
    is_set      whether the settings name one
    require     raises ServiceError unless the settings lead to one that works
    make        a gold table's rows in it
    audit       compares it with gold, both ways; raises ServiceError if it is out of reach
    doubts      what may go wrong with the rows in one that works, a line each
    reads_back  how far back in time the change feed is read to fill one that lacks rows
    own         what a row is there, as a column over gold's rows: `Change.own[name]`; null: the message
    unfit       why a table, as it is declared, cannot be there: names that are too long, or not its own
    try_row     writes a row of a table, and leaves no trace; raises ServiceError if one would not be taken
    """

    name: str
    label: str
    promise: Promise
    is_set: Callable[[Settings], bool]
    require: Callable[[Settings], None]
    make: Callable[[Exported], Sink]
    audit: Callable[[Audited], Findings]
    doubts: Callable[[Settings], Sequence[str]] = lambda _settings: ()
    reads_back: Callable[[Settings], timedelta] = lambda _settings: timedelta(0)
    own: Callable[[MergedTable], Column] | None = field(default=None)
    unfit: Callable[[MergedTable], Iterable[str]] = lambda _table: ()
    try_row: Callable[[MergedTable, Settings], None] = lambda _table, _settings: None


@dataclass(frozen=True)
class LeadKind:
    """The kind of the store that leads.

    place  where a table's rows are there; null for a table that does not go there
    make   a gold table's rows at its place; null for such a table
    audit  compares gold with its place
    """

    name: str
    label: str
    promise: Promise
    place: Callable[[MergedTable, Settings], str | None]
    make: Callable[[Exported], Lead | None]
    audit: Callable[[AuditedLead], Findings]
