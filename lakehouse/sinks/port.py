"""The interface for stores that gold rows are exported to, and its guarantees.

    registry.py ── SinkKind ── make(Exported) ──> Sink          every store but the lead
                   LeadKind ── make(Exported) ──> Lead          the store that a micro-batch waits for

A micro-batch is sent to its lead first. If the lead fails, the step fails, and the same micro-batch is
retried. If a sink fails, the export continues: the lake records that the sink is behind, and the sink is
refilled on a schedule. An unavailable sink therefore never delays the other stores. The lake records the
export's position last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession

from lakehouse.settings import Settings
from lakehouse.sinks.change import Change, Span, UnsentRow
from lakehouse.sinks.outgoing import as_inserted, filter_newest, leaves
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Position, Progress
from lakehouse.streams.definition import MergedTable

Example = tuple[dict[str, Any], str]
"""An example of a difference: the row's key (names and values), and a description of the difference."""


@dataclass(frozen=True)
class Exported:
    """An exported gold table, with its path, the settings and two callbacks.

    `notice` shows the user a line of text. `note_unsent` records the rows that a destination (the name of a
    topic or store) permanently refuses, and when (UTC).
    """

    lake: Lake
    path: str
    table: MergedTable
    settings: Settings
    notice: Callable[[str], None] = lambda _text: None
    note_unsent: Callable[[str, Sequence[UnsentRow], datetime], None] = lambda _place, _rows, _now: None

    @property
    def spark(self) -> SparkSession:
        """The export's Spark session."""
        return self.lake.spark

    @property
    def name(self) -> str:
        """The export step's name, for messages."""
        return f"export.{self.table.name}"

    @cached_property
    def generation(self) -> int:
        """The table's creation time or, for a copy, its adoption time, in ms since the epoch."""
        return tables.generation_ms(self.spark, self.path)

    @cached_property
    def sent_as(self) -> str:
        """The name that identifies the table in recorded positions."""
        return tables.sent_as(self.spark, self.path)

    def standing_at(self, version: int) -> DataFrame:
        """Return the table's rows to export as of a version, as changes for `outgoing`."""
        at = tables.committed_at(self.spark, self.path, version)
        rows = as_inserted(tables.read_version(self.spark, self.path, version), version, at)
        return rows.where(leaves(self.table))

    def changed_between(self, first: int, end: int) -> DataFrame:
        """Return the newest state of each exported row that changed in versions `first` to `end` - 1.

        Reading the frame fails if VACUUM has removed the change feed's files.
        """
        changes = tables.read_changes(self.spark, self.path, first, end - 1)
        return filter_newest(changes, self.table).where(leaves(self.table))


@dataclass(frozen=True)
class Sending:
    """A micro-batch to send: its span of the table's changes, and the current time (UTC).

    is_first     no row of the table has been sent before
    begins_anew  the rows differ from an earlier attempt's rows, because VACUUM has removed changes
    is_large     the rows do not fit in memory
    """

    span: Span
    now: datetime
    is_first: bool = False
    begins_anew: bool = False
    is_large: bool = False


class Sink(Protocol):
    """A store for one gold table's rows. A sink is not thread-safe, and handles one micro-batch at a time.

    If the store is unreachable or full, or refuses a request, methods raise SinkTroubleError with a one-line
    message that contains no password. The sink is then filled before it receives another micro-batch.
    """

    name: str

    def begin(self, sending: Sending) -> None:
        """Begin a micro-batch, and discard any unfinished micro-batch."""

    def write(self, changes: Sequence[Change]) -> None:
        """Write the micro-batch's next rows. Without transactions, they can become visible immediately."""

    def end(self) -> int:
        """Make the rows visible, and return how many rows changed in the store (0 if none was missing)."""

    def lacks_rows(self) -> bool:
        """Return whether the store has lost rows, or false if it is unreachable.

        This method is called often, so it must be cheap.
        """

    def require(self) -> None:
        """Raise SinkTroubleError unless the store answers promptly."""

    def fill(self, reached: Position | None, now: datetime) -> int:
        """Send missing rows up to `reached`, and return how many rows changed in the store.

        `reached` is the position up to which the table has been sent, or None if nothing has been sent.
        """

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class Slice:
    """Rows that the lead store has processed, how many it sent, and those that it permanently refused."""

    changes: Sequence[Change]
    sent: int = 0
    refused: tuple[UnsentRow, ...] = ()


class Lead(Protocol):
    """The store that a micro-batch waits for. Its transactions include the step's position.

    `name` is the store's name, and `place` is where the store keeps the table's rows. Methods raise
    ServiceError if the store is unreachable, and PositionError if another export has sent different rows in
    the meantime.
    """

    name: str
    place: str

    def sent(self) -> Progress | None:
        """Return the position up to which the table has been sent, or None if nothing has been sent."""

    def begun(self) -> Span | None:
        """Return the span of the last micro-batch committed in slices, or None if there was none."""

    def send(self, changes: Iterable[Change], sending: Sending) -> Iterator[Slice]:
        """Send the rows in order, and yield each slice after its commit."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class Findings:
    """The result of an audit: the number of rows compared, the number of differences, examples, and notes.

    `not_compared` describes the rows that could not be compared, and why. If there are such rows, the audit
    is not clean.
    """

    compared: int = 0
    differences: int = 0
    examples: Sequence[Example] = ()
    notes: Sequence[str] = ()
    not_compared: Sequence[str] = ()


@dataclass(frozen=True)
class Audited:
    """The input for auditing a store: a gold table, and the version up to which it has been sent.

    `now` is in UTC. `rows_at` returns the table's rows at a version, or at the latest version that has the
    same rows.
    """

    exported: Exported
    version: int
    now: datetime
    rows_at: Callable[[int], DataFrame]


@dataclass(frozen=True)
class Unsent:
    """A table's refused rows in ops.unsent_rows for one destination, and whether changes were lost."""

    rows: DataFrame
    has_removed: bool


@dataclass(frozen=True)
class AuditedLead:
    """The input for auditing the lead store: a gold table, and the lake's records of its export.

    noted        the sent position recorded in the lake, or None if nothing has been sent
    version_of   returns the latest version with the same rows as a position, or None if there is none
    unsent       returns the rows not sent to the place, or None if there are none
    copied_from  the lake that this lake was copied from, or None if it is not a copy
    """

    exported: Exported
    place: str
    noted: Progress | None
    version_of: Callable[[Position], int | None]
    unsent: Callable[[], Unsent | None]
    copied_from: str | None


@dataclass(frozen=True)
class Stored:
    """A part of what a store contains, for a search of the whole store.

    place   the key or table that contains it
    kind    what the place is, such as a hash or a table
    part    the part of the place, such as a column
    values  the values, as bytes
    until   when the place expires (UTC), or None if it does not
    """

    place: str
    kind: str
    part: str
    values: Sequence[bytes]
    until: datetime | None = None


@dataclass(frozen=True)
class SinkKind:
    """A store that gold can be exported to, described for store-independent code.

    name        its name in `Export.sinks`, in log lines and in metrics
    label       its display name
    is_set      whether it is configured
    require     raises ServiceError unless the configured store works
    make        creates the sink for a gold table without connecting to the store
    audit       compares the store and gold in both directions; raises ServiceError if it is unreachable
    doubts      warnings about the rows in a working store, one line each
    reads_back  how far back the change feed is read to fill a store that lacks rows
    own         the row in the store's own format, as a column of gold (None: the store uses the message)
    unfit       reasons why the store cannot hold a table as declared, such as reserved or overlong names
    try_row     writes a test row and leaves no trace; raises ServiceError if the store refuses the row
    contents    yields everything that the store contains of any lake, for `lakehouse erase verify`; raises
                ServiceError if it is unreachable (None: the store cannot be searched)
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
    contents: Callable[[Settings], Iterator[Stored]] | None = field(default=None)


@dataclass(frozen=True)
class LeadKind:
    """The lead store, described for store-independent code.

    place  where the store keeps a table's rows, or None for a table that is not sent to the store
    make   creates the lead for a gold table, or returns None for a table that is not sent to the store
    audit  compares gold with the place
    """

    name: str
    label: str
    place: Callable[[MergedTable, Settings], str | None]
    make: Callable[[Exported], Lead | None]
    audit: Callable[[AuditedLead], Findings]
