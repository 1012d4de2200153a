"""What a stream is: values that the layers' engines read, without any engine code.

A Stream is one frozen value, made in one file of `lakehouse/streams/`. It has one or more sources (a topic
with the contract of its records) and one or more gold tables (how clean rows become merged rows, and how
those are exported). A difference between two streams is a function on these values, never a branch in an
engine. Settings that a stream depends on are part of it: `lakehouse.streams.load` puts them in.

    Stream ─┬─ Source ──── Contract ── Field …                   bronze and silver
            │      └────── Rule …
            └─ GoldTable ─ preaggregate, fold ─┬─ Export         gold and export
                   ├────── EventClock | WallClock
                   └────── SideTable ──────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.contract import Contract as Contract
from lakehouse.contract import Field as Field
from lakehouse.contract import FieldType as FieldType
from lakehouse.contract import KeyForm as KeyForm
from lakehouse.contract import Mark as Mark
from lakehouse.contract import TimeUnit as TimeUnit
from lakehouse.messages.layout import Equals, Key, Message, OfColumns
from lakehouse.settings.registry_access import RecordFormat, RegistryAccess

OWN_SUITES = "expectations"
"""The package with the suites of this project's tables."""
Severity = Literal["fail", "warn"]
"""What an expectation that does not hold does: the check fails, or only warns."""


@dataclass(frozen=True)
class Rule:
    """A condition that a clean row must not meet, with the wording of a dead letter's reason.

    `violated` is a Column over the parsed row that is true if the rule is broken; null counts as not broken.
    """

    name: str
    column: str
    violated: Column
    message: Column


@dataclass(frozen=True)
class Source:
    """A topic and the tables for its records: bronze.`table` as they came, silver.`table` clean.

    A record is late if its event time is further than `allowed_lateness_s` behind the greatest one accepted.
    It is invalid if its event time is further than `future_tolerance_s` ahead of its landing, or before
    `earliest_event_time`, which is in UTC and not before 1900.

    unique_by    a field, or `header:NAME`, with a record's id: of several records with one id and event time
                 silver keeps the first that landed; null: records have no id
    sequence_by  a field, or `header:NAME`, with a whole number: of all records with one id silver keeps the
                 one with the greatest, and records can delete ids (`lakehouse.records.deletions`);
                 null: a record does not replace another
    deletion_key how the key of a deletion is written, a KeyForm: a Kafka record without a value deletes the
                 id that its key says
    deleted_if   what marks a record with a value as a deletion, a Mark such as op=d; null: nothing does
    format       how its records are written
    registry     has the schemas of those that are not JSON (`lakehouse.formats`)
    """

    topic: str
    table: str
    contract: Contract
    rules: Callable[[], tuple[Rule, ...]] = tuple
    allowed_lateness_s: int = 7 * 24 * 3600
    future_tolerance_s: int = 300
    earliest_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    unique_by: str | None = None
    sequence_by: str | None = None
    deletion_key: str = "text"
    deleted_if: str | None = None
    format: RecordFormat = "json"
    registry: RegistryAccess = field(default=RegistryAccess(""), compare=False)  # its secrets may change

    def __post_init__(self) -> None:
        """Refuse, with ValueError, a sequence without an id, unknown fields, and deletions that cannot be."""
        if self.sequence_by is not None and self.unique_by is None:
            raise ValueError(f"source {self.table}: sequence_by orders the records of one id; say unique_by")
        _ = self.id_column, self.sequence_column
        _refuse_useless(self)

    @property
    def id_column(self) -> str | None:
        """The column of silver with a record's id; null if records have none."""
        return self._column_of(self.unique_by, ID)

    @property
    def sequence_column(self) -> str | None:
        """The column of silver with what orders the records of an id; null if nothing does."""
        return self._column_of(self.sequence_by, SEQUENCE)

    @property
    def is_deleted_by_key(self) -> bool:
        """Whether a record without a value deletes the id that its key says."""
        return self.sequence_by is not None and self.contract.tombstone is None

    @property
    def key_form(self) -> KeyForm:
        """How the key of such a record is written."""
        return KeyForm.of(self.deletion_key)

    @property
    def mark(self) -> Mark | None:
        """What marks a record with a value as a deletion; null: nothing does."""
        return None if self.deleted_if is None else Mark.of(self.deleted_if)

    @property
    def is_typed(self) -> bool:
        """Whether fields come in types of their own; else all are text."""
        return self.format in {"avro", "protobuf"}

    def _column_of(self, name: str | None, of_header: str) -> str | None:
        if name is None or header_of(name):
            return name and of_header
        columns = {one.name: one.column for one in self.contract.fields}
        if name in columns:
            return columns[name]
        names = ", ".join(columns)
        raise ValueError(f"source {self.table}: there is no field {name}; there is {names}")


def _refuse_useless(source: Source) -> None:
    """Refuse, with ValueError, forms of deletions that are none, or where nothing can be deleted."""
    has_form, has_mark = source.key_form != KeyForm("text"), source.mark is not None
    if source.sequence_by is None and (has_form or has_mark):
        raise ValueError(
            f"source {source.table}: deletion_key and deleted_if are about deletions of ids, which need "
            "unique_by and sequence_by"
        )
    if has_form and not source.is_deleted_by_key:
        raise ValueError(
            f"source {source.table}: a record without a value starts {source.contract.tombstone} again, and "
            "deletes no id: leave out deletion_key; deleted_if can be used"
        )


ID, SEQUENCE = "unique_id", "sequence"
"""Columns of silver with a record's id and sequence where they come from headers."""

_HEADER = "header:"


def header_of(name: str | None) -> str | None:
    """Return the header that `unique_by` or `sequence_by` names; null if it is a field."""
    return name.removeprefix(_HEADER) if name and name.startswith(_HEADER) else None


@dataclass(frozen=True)
class EventTimeProgress:
    """How far a gold table's time had come before a micro-batch (`before`) and with it (`now`), UTC.

    With an EventClock both are the greatest event time merged so far, `before` null for an empty table.
    Otherwise `now` is the wall clock and `before` is null.
    """

    before: datetime | None
    now: datetime


@dataclass(frozen=True)
class WallClock:
    """Time is the wall clock; it advances without records.

    It changes each row for which `waits` holds when `after` has passed since its `column`: columns get the
    values of `set_columns`. A fold that meets such rows does the same.
    """

    waits: Equals
    column: str
    after: timedelta
    set_columns: Callable[[], Mapping[str, Column]]


@dataclass(frozen=True)
class EventClock:
    """Time is the greatest event time merged, the maximum of `column`; micro-batches advance it.

    `due(progress)` is the condition on current rows that time alone may change. In such rows `due_column`
    lies between the two ends of `due_span(progress)`; null: no lower end.

    Once nothing has been merged for `idle_after`, the clock `when_idle` changes the rows that wait, which are
    those that `due` has not selected yet; its column is `due_column`. A fold leaves what it has changed.
    """

    column: str
    due: Callable[[EventTimeProgress], Column]
    due_column: str
    due_span: Callable[[EventTimeProgress], tuple[datetime | None, datetime]]
    when_idle: WallClock
    idle_after: timedelta


@dataclass(frozen=True)
class RedisView:
    """How rows are laid out in Redis, for readers that need one round trip.

    Every row has a key of its own, `lakehouse:<table>:row:<row_key>`, so a series is one MGET. A hash per
    `group`, `lakehouse:<table>:latest:<group>`, holds for each `member` its row with the greatest `order`:
    the latest row is one HGET, a comparison across members HKEYS and HMGET. Values are JSON: the exported
    message, with the table's generation and the row's version. `order` is a whole number. `rows_move`: a row
    may get another key and order, by a commit that deletes one row and puts the other, and no row of its
    member lies between them. The row key is made of the table's keys; group and member are made of some of
    them.
    """

    row_key: Key
    group: Key
    member: Key
    order: OfColumns
    rows_move: bool = False


@dataclass(frozen=True)
class Export:
    """How a gold row is exported: as a message to a topic, and to the stores of `lakehouse.sinks`.

    topic           where messages go; null: to no topic
    key             the message's key
    value           the message, JSON
    redis           the layout in Redis
    partition_by    what determines the partition; null: the key
    identity        fields of a message that, with its key, identify the row; null: none do, and a deleted row
                    is not told of
    export_when     which of the new and changed rows are sent
    tombstone_when  which of the deleted rows are sent, as tombstones
    sinks           the stores that get the rows, by name; null: every one that is configured
    """

    topic: str | None
    key: Callable[[], Column]
    value: Message
    redis: RedisView
    partition_by: Callable[[], Column] | None = None
    identity: tuple[str, ...] | None = ()
    export_when: Callable[[], Column] = lambda: F.lit(True)
    tombstone_when: Callable[[], Column] = lambda: F.lit(True)
    sinks: tuple[str, ...] | None = None

    def tombstone_key(self) -> Column:
        """Return the key of a deleted row's message, which is the row's alone.

        If a message's key is that of several rows, such as the windows of a series, a null value under it
        would take all of them from a compacted topic.
        """
        names = self.identity or ()
        return F.concat_ws(":", self.key(), *(self.value.values[name]().cast("string") for name in names))


@dataclass(frozen=True)
class Quantiles:
    """Columns that are estimated quantiles of `value`, each with its rank.

    `keyed` gives clean rows the table's key. Quantiles are exact for groups of up to `exact_to` values;
    beyond that, their rank error is at most `limit`.
    """

    value: str
    ranks: Mapping[str, float]
    keyed: Callable[[DataFrame], DataFrame]
    exact_to: int
    limit: float


@dataclass(frozen=True)
class Comparison:
    """How a row is compared with one recomputed from silver: column by column, to the last digit.

    Except: `ignored` columns depend on more than the rows of silver. Doubles may differ by 1e-9 of their
    size; those in `slack` by this much more, a Column over the recomputed row.
    """

    ignored: tuple[str, ...] = ()
    slack: Callable[[], Mapping[str, Column]] = dict
    quantiles: Quantiles | None = None


@dataclass(frozen=True, kw_only=True)
class MergedTable:
    """What every gold table has: its grain, its rows' times, and its export.

    name             the table's, in gold
    comment          what a row is; catalogs show it
    keys             the columns that identify a row
    schema           all of its columns
    time_columns     the columns of a row's first and last time, by which files are skipped; null: none
    window_s         the length of its rows' windows, in seconds; null: they are not windows
    pinned_settings  settings that the content depends on, as text: under others the table is refused until a
                     rebuild makes its rows anew, and under other keys or windows for good
    stats            further columns whose minima and maxima let files be skipped
    comparison       how a row is compared with a recomputed one
    final            true for a row that time no longer changes; null: rows do not say so
    export           how its rows are exported
    """

    name: str
    comment: str = ""
    keys: tuple[str, ...]
    schema: StructType
    time_columns: tuple[str, str] | None = None
    window_s: int | None = None
    pinned_settings: Mapping[str, str] = field(default_factory=dict)
    stats: tuple[str, ...] = ()
    comparison: Comparison = Comparison()
    final: Equals | None = None
    export: Export


@dataclass(frozen=True, kw_only=True)
class SideTable(MergedTable):
    """A table that is kept beside another one, in the same micro-batch.

    `rows(folded)` are its new rows, one per key, made from the result of the other table's fold. Its keys are
    columns of the other table's partials.
    """

    rows: Callable[[DataFrame], DataFrame]


def only(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of a single silver table unchanged."""
    (frame,) = frames.values()
    return frame


@dataclass(frozen=True)
class FoldState:
    """Columns that only the next fold of a row needs; null once they have been cleared.

    columns         their names
    until           a time column: records with this event time or a later one do not change the row
    settled         whether time alone no longer changes the row; only settled rows are cleared
    unsettled_from  of the progress: rows that begin later are not cleared; null: it is unknown which
    """

    columns: tuple[str, ...]
    until: str
    settled: Callable[[], Column]
    unsettled_from: Callable[[EventTimeProgress], datetime | None]


@dataclass(frozen=True, kw_only=True)
class GoldTable(MergedTable):
    """A merged table and the transformations that keep it.

    reads            the silver tables that it is made of
    combine          their rows as one frame
    preaggregate     a micro-batch's clean rows, reduced as far as possible without the table
    counted          an aggregate over the result of `preaggregate`: the number of clean rows in it
    fold             of that result, the current rows and the progress: new, changed and deleted rows, one per
                     key, the deleted ones marked by `tables.DELETED`
    clock            what time alone changes; null: nothing
    merge_radius     a fold gets the current rows within this distance in time of the micro-batch
    needs_recompute  the keys of rows that a fold cannot maintain: they are recomputed from all rows of silver
                     up to the micro-batch, whose partials have a column `recomputed`
    total            the column that is null if its type does not hold the sum: then the row is set aside
                     (ops.keys_set_aside), and the others continue
    sides            tables that are kept beside this one
    state            what only a fold needs; maintenance clears it when no fold can need it any more
    merge_every_s    in a live run, rows may wait in silver this long, for a table that is read now and then
    """

    reads: tuple[str, ...]
    preaggregate: Callable[[DataFrame], DataFrame]
    fold: Callable[[DataFrame, DataFrame, EventTimeProgress], DataFrame]
    combine: Callable[[Mapping[str, DataFrame]], DataFrame] = only
    counted: Callable[[], Column] = lambda: F.sum("count")
    clock: EventClock | WallClock | None = None
    merge_radius: timedelta = timedelta(0)
    needs_recompute: Callable[[DataFrame, DataFrame], DataFrame] | None = None
    total: str | None = None
    sides: tuple[SideTable, ...] = ()
    state: FoldState | None = None
    merge_every_s: int = 0

    @property
    def wall_clock(self) -> WallClock | None:
        """The wall clock that changes its rows, perhaps only while it is idle; null for none."""
        return self.clock.when_idle if isinstance(self.clock, EventClock) else self.clock


@dataclass(frozen=True)
class Stream:
    """One of the pipelines: what it reads, what it keeps, and what it sends.

    name     the stream's, in commands
    sources  what it reads from Kafka, each into one table of bronze and one of silver
    gold     the tables made from these
    suites   the package with the suites of its tables, `<layer>.<table>`; a table without one is expected to
             have what any such table has
    """

    name: str
    sources: tuple[Source, ...]
    gold: tuple[GoldTable, ...] = field(default=())
    suites: str = OWN_SUITES

    def __post_init__(self) -> None:
        """Refuse, with ValueError, corrections of records that a table joins by their distance in time."""
        corrected = {source.table for source in self.sources if source.sequence_by is not None}
        joined = [one.name for one in self.gold if one.merge_radius and corrected.intersection(one.reads)]
        if joined:
            raise ValueError(
                f"stream {self.name}: gold.{joined[0]} joins records that are near each other in time, and "
                "cannot follow corrections: leave out sequence_by"
            )

    @property
    def tables(self) -> tuple[MergedTable, ...]:
        """Every gold table, each followed by its side tables."""
        return tuple(kept for table in self.gold for kept in (table, *table.sides))

    @property
    def topics(self) -> tuple[str, ...]:
        """Default names of every topic that the stream reads or writes."""
        written = (table.export.topic for table in self.tables)
        return (*(source.topic for source in self.sources), *(topic for topic in written if topic))
