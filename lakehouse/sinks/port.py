"""The interface of stores that get gold's rows: what the export needs of one, and its guarantees.

    registry.py ── SinkKind ── make(Exported) ──> Sink          every store but one
                   LeadKind ── make(Exported) ──> Lead          the store that a micro-batch waits for

A micro-batch goes to its lead first: if that fails, the step fails, and the same micro-batch is retried. The
export does not wait for sinks. If one fails, the lake records that it is behind, and it is filled again on a
schedule, so an unavailable store delays no other. The export's position is recorded in the lake after all
stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession

from lakehouse.settings import Settings
from lakehouse.sinks.change import Change, Span
from lakehouse.sinks.outgoing import as_inserted, filter_leaving, filter_newest
from lakehouse.sinks.sizes import UnsentRow
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Position, Progress
from lakehouse.streams.definition import MergedTable

Example = tuple[dict[str, Any], str]
"""A difference: the row's key, by the names of its parts, and what is wrong with it."""


@dataclass(frozen=True)
class Exported:
    """An exported gold table: its path, its settings, and the receivers of notices.

    `notice` gets lines for the user. `note_unsent` gets the place (a topic or a store's name), rows that it
    refuses for good, and the time (UTC).
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
        """When the table was created or, as a copy, adopted, in ms since the epoch."""
        return tables.generation_ms(self.spark, self.path)

    @cached_property
    def sent_as(self) -> str:
        """The table's name in positions."""
        return tables.sent_as(self.spark, self.path)

    def standing_at(self, version: int) -> DataFrame:
        """Return the exported rows as of a version, as changes for `outgoing`."""
        at = tables.committed_at(self.spark, self.path, version)
        rows = as_inserted(tables.read_version(self.spark, self.path, version), version, at)
        return filter_leaving(rows, self.table)

    def changed_between(self, first: int, end: int) -> DataFrame:
        """Return the newest state of exported rows that were changed from version `first` to before `end`.

        Reading the frame fails if VACUUM has removed files.
        """
        changes = tables.read_changes(self.spark, self.path, first, end - 1)
        return filter_leaving(filter_newest(changes, self.table), self.table)


@dataclass(frozen=True)
class Sending:
    """A micro-batch to send: the span of the table's changes, and the time (UTC).

    `is_first`: nothing of the table has been sent before. `begins_anew`: its rows differ from those of an
    earlier attempt, because VACUUM has removed changes. `is_large`: its rows do not fit in memory.
    """

    span: Span
    now: datetime
    is_first: bool = False
    begins_anew: bool = False
    is_large: bool = False


class Sink(Protocol):
    """The rows of one gold table in a store. For one thread, and one micro-batch at a time.

    If the store is out of reach or full, or refuses, methods raise SinkTroubleError: one line without
    passwords. After that the sink is filled before it gets another micro-batch.
    """

    name: str

    def begin(self, sending: Sending) -> None:
        """Begin a micro-batch; one that has not ended is discarded."""

    def write(self, changes: Sequence[Change]) -> None:
        """Write the micro-batch's next rows; in a store without transactions, they may be visible at once."""

    def end(self) -> int:
        """Make the rows visible; return how many have changed in the store, 0 if it had all of them."""

    def lacks_rows(self) -> bool:
        """Tell whether the store has lost rows; called often, so false while the store is unreachable."""

    def require(self) -> None:
        """Raise SinkTroubleError unless the store answers at once."""

    def fill(self, reached: Position | None, now: datetime) -> int:
        """Send the rows that the store lacks of those already sent, and return how many have changed in it.

        `reached` is the position up to which the table has been sent; null before the first time.
        """

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class Slice:
    """Rows that the lead is done with: how many were sent just now, and which it refuses for good."""

    changes: Sequence[Change]
    sent: int = 0
    refused: tuple[UnsentRow, ...] = ()


class Lead(Protocol):
    """The store that a micro-batch waits for: its transactions hold the position of the step.

    `name` is the store's, `place` that of the table's rows in it. Raises ServiceError if the store is out of
    reach, and PositionError if another export has sent something else meanwhile.
    """

    name: str
    place: str

    def sent(self) -> Progress | None:
        """Return the position up to which the table has been sent; null before the first time."""

    def begun(self) -> Span | None:
        """Return the span of the last micro-batch that was committed in parts; null for none."""

    def send(self, changes: Iterable[Change], sending: Sending) -> Iterator[Slice]:
        """Send the rows in order, and yield them slice by slice, each after its commit."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class Findings:
    """An audit's result: the number of rows compared, the number of differences, some examples, and notes.

    `not_compared` lists the rows that could not be compared, and why. The audit is then not clean.
    """

    compared: int = 0
    differences: int = 0
    examples: Sequence[Example] = ()
    notes: Sequence[str] = ()
    not_compared: Sequence[str] = ()


@dataclass(frozen=True)
class Audited:
    """An audit's input for a store: a gold table, and the version up to which it has been sent.

    `now` is UTC. `rows_at` returns the table's rows as of a version, or as of the last one with the same
    rows.
    """

    exported: Exported
    version: int
    now: datetime
    rows_at: Callable[[int], DataFrame]


@dataclass(frozen=True)
class Unsent:
    """The entries of ops.unsent_rows for a table and a place: refused rows, and whether changes are lost."""

    rows: DataFrame
    has_removed: bool


@dataclass(frozen=True)
class AuditedLead:
    """An audit's input for the lead's place: a gold table, and the lake's records about it.

    noted        the sent position recorded in the lake; null if nothing has been sent
    version_of   the version of a position, the newest one with the same rows; null for none
    unsent       the rows that were not sent to the place; null for none
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
    """A store that gold can be exported to, for code that knows no store by name.

    name        its name in `Export.sinks`, in log lines and in metrics
    label       its display name
    is_set      whether it is configured
    require     raises ServiceError unless the configured store works
    make        creates the sink of a gold table
    audit       compares it with gold, both ways; raises ServiceError if it is out of reach
    doubts      warnings about the rows in a store that works, one line each
    reads_back  how far back in time the change feed is read to fill a store that lacks rows
    own         a row's form there, as a column over gold's rows: `Change.own[name]`; null: the message
    unfit       why a table, as declared, cannot be there: names that are too long, or reserved
    try_row     writes a row of a table, and leaves no trace; raises ServiceError if it would be refused
    """

    name: str
    label: str
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
    """The kind of the lead store.

    place  the place of a table's rows in it; null for a table that is not sent there
    make   creates the lead of a gold table; null for such a table
    audit  compares gold with the place
    """

    name: str
    label: str
    place: Callable[[MergedTable, Settings], str | None]
    make: Callable[[Exported], Lead | None]
    audit: Callable[[AuditedLead], Findings]
