"""The declaration of a stream: the values that the layers read, without the layers' code.

A Stream is one frozen value. It has one or more sources (a topic and the contract for its records) and one or
more gold tables (how clean rows are merged, and how the result is exported). Streams differ only in these
values and their functions; no engine code branches on the stream. `lakehouse.streams.registry.load` applies
the settings on which a stream depends.

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

from lakehouse.common.record_lines import RecordFormat
from lakehouse.settings.registry_access import RegistryAccess
from lakehouse.streams.contract import Contract as Contract
from lakehouse.streams.contract import Field as Field
from lakehouse.streams.contract import FieldType as FieldType
from lakehouse.streams.contract import KeyForm as KeyForm
from lakehouse.streams.contract import Mark as Mark
from lakehouse.streams.contract import TimeUnit as TimeUnit
from lakehouse.streams.messages.layout import Equals, Key, Message, OfColumns
from lakehouse.streams.window_lengths import WindowLength

OWN_SUITES = "expectations"
"""The package with the expectation suites for this project's own tables."""
Severity = Literal["fail", "warn"]
"""The effect if an expectation is not met: the check fails, or only warns."""


@dataclass(frozen=True)
class Rule:
    """A validation rule: a condition that a clean row must not meet, and the message for a dead letter.

    `violated` is a boolean Column over the parsed row. It is true if the row breaks the rule; null means that
    it does not. For a rule in SQL, `key` names the setting that contains the condition, and a run checks the
    condition at its start. For a rule in Python, `key` is empty.
    """

    name: str
    column: str
    violated: Column
    message: Column
    key: str = ""


@dataclass(frozen=True)
class Source:
    """A topic and its two tables: raw records in bronze.`table`, clean rows in silver.`table`.

    A record is late if its event time is more than `allowed_lateness_s` behind the greatest event time
    accepted so far. It is invalid if its event time is more than `future_tolerance_s` after its ingestion, or
    before `earliest_event_time`, which is in UTC and not before 1900.

    unique_by    a field, or `header:NAME`, with a record's id: of several records with the same id and event
                 time, silver keeps the first to land; None: records have no id
    sequence_by  a field, or `header:NAME`, with a whole number: of all records with the same id, silver keeps
                 the one with the greatest number, and records can delete ids
                 (`lakehouse.engine.records.deletions`); None: no record replaces another
    deletion_key the encoding of a deletion's key, a KeyForm: a Kafka record without a value deletes the id in
                 its key
    deleted_if   the Mark, such as op=d, of a deletion that has a value; None: no deletion has a value
    format       the encoding of the records
    registry     the schema registry, for formats other than JSON (`lakehouse.engine.formats`)
    start        where a new lake starts reading the topic: earliest, latest, or a time
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
    registry: RegistryAccess = field(default=RegistryAccess(""), compare=False)  # its secrets can change
    start: str = "earliest"

    def __post_init__(self) -> None:
        """Raise ValueError for unknown fields, a sequence without an id, and unusable deletion options."""
        if self.sequence_by is not None and self.unique_by is None:
            raise ValueError(
                f"source {self.table}: sequence_by orders the records with the same id; set unique_by too"
            )
        _ = self.id_column, self.sequence_column
        _refuse_useless(self)
        _refuse_text(self)

    @property
    def id_column(self) -> str | None:
        """The silver column with a record's id, or None if records have no id."""
        return self._column_of(self.unique_by, ID)

    @property
    def sequence_column(self) -> str | None:
        """The silver column that orders the records with the same id, or None if no column does."""
        return self._column_of(self.sequence_by, SEQUENCE)

    @property
    def is_deleted_by_key(self) -> bool:
        """Whether a record without a value deletes the id in its key."""
        return self.sequence_by is not None and self.contract.tombstone is None

    @property
    def key_form(self) -> KeyForm:
        """The encoding of the keys of records without a value."""
        return KeyForm.of(self.deletion_key)

    @property
    def mark(self) -> Mark | None:
        """The mark of a deletion that has a value, or None if no deletion has a value."""
        return None if self.deleted_if is None else Mark.of(self.deleted_if)

    @property
    def is_typed(self) -> bool:
        """Whether the format has typed fields. In other formats, all fields are text."""
        return self.format in {"avro", "protobuf"}

    def _column_of(self, name: str | None, of_header: str) -> str | None:
        if name is None or header_of(name):
            return name and of_header
        columns = {one.name: one.column for one in self.contract.fields}
        if name in columns:
            return columns[name]
        key, names = "unique_by" if of_header == ID else "sequence_by", ", ".join(columns)
        raise ValueError(f"source {self.table}: {key} names {name}, which is not a field; known: {names}")


def _refuse_useless(source: Source) -> None:
    """Raise ValueError for malformed deletion options, and for options that the source does not support."""
    has_form, has_mark = source.key_form != KeyForm("text"), source.mark is not None
    if source.sequence_by is None and (has_form or has_mark):
        raise ValueError(
            f"source {source.table}: deletion_key and deleted_if delete by id, so set unique_by "
            "and sequence_by too"
        )
    if has_form and not source.is_deleted_by_key:
        raise ValueError(
            f"source {source.table}: a record without a value resets {source.contract.tombstone} and "
            "deletes no id: remove deletion_key, or use deleted_if"
        )


def _refuse_text(source: Source) -> None:
    """Raise ValueError for `accepts_text` in a format with types, and for ids and sequences."""
    for one in source.contract.fields:
        if one.accepts_text and source.is_typed:
            raise ValueError(
                f"field {one.name}: accepts_text is only for JSON; in {source.format}, numbers have types"
            )
        if one.accepts_text and one.name in {source.unique_by, source.sequence_by}:
            raise ValueError(
                f"field {one.name}: an id or sequence must always have one JSON type: remove accepts_text"
            )


ID, SEQUENCE = "unique_id", "sequence"
"""Silver columns for a record's id and sequence if they come from headers."""

_HEADER = "header:"


def header_of(name: str | None) -> str | None:
    """Return the header that `unique_by` or `sequence_by` names, or None if it names a field."""
    return name.removeprefix(_HEADER) if name and name.startswith(_HEADER) else None


@dataclass(frozen=True)
class EventTimeProgress:
    """A gold table's time (UTC) before a micro-batch (`before`) and after it (`now`).

    With an EventClock, both are the greatest event time merged by then; `before` is None for an empty table.
    Otherwise, `now` is the wall clock's time, and `before` is None.
    """

    before: datetime | None
    now: datetime


@dataclass(frozen=True)
class WallClock:
    """A clock for tables whose rows change with wall-clock time, which advances even without new records.

    A row that meets `waits` is updated with `set_columns` once `after` has passed since the time in its
    `column`. A fold applies the same update to the rows that it processes.
    """

    waits: Equals
    column: str
    after: timedelta
    set_columns: Callable[[], Mapping[str, Column]]


@dataclass(frozen=True)
class EventClock:
    """A clock for tables whose rows change with event time: the greatest time merged so far from `column`.

    Only micro-batches advance this time. When it advances, a current row can change even without new records,
    if its `due_column` is within `due_span(progress)`. Both ends of this span are inclusive; None means no
    lower bound. Folds also get these rows.

    Once nothing has been merged for `idle_after`, the clock `when_idle` updates the rows that no fold has
    updated yet. Its `column` is the `due_column`. Later folds keep these updates.
    """

    column: str
    due_column: str
    due_span: Callable[[EventTimeProgress], tuple[datetime | None, datetime]]
    when_idle: WallClock
    idle_after: timedelta


@dataclass(frozen=True)
class RedisView:
    """The layout of rows in Redis, designed so that reads take one round trip.

    Every row has its own key, `lakehouse:<table>:row:<row_key>`, so one MGET reads a series. Each `group` has
    a hash, `lakehouse:<table>:latest:<group>`. It maps each `member` to its row with the greatest `order`.
    One HGET reads the latest row, and comparing members takes HKEYS and HMGET. Values are JSON: the exported
    message, the table's generation and the row's version. `order` is a whole number. With `rows_move`, a
    commit can change a row's key and order by deleting the old row and inserting a new one. No other row of
    the same member has an order between the two. The row key is built from all of the table's keys. Group and
    member are built from some of these keys.
    """

    row_key: Key
    group: Key
    member: Key
    order: OfColumns
    rows_move: bool = False


@dataclass(frozen=True)
class Export:
    """The export of a gold table's rows, as messages to a topic and to the stores in `lakehouse.sinks`.

    topic           the destination topic; None: no topic
    key             the message key
    value           the message, JSON
    redis           the layout in Redis
    partition_by    the value that determines the partition; None: the key
    identity        message fields that, together with the key, identify the row; None: no fields
                    identify it, and no message is sent for a deleted row
    export_when     the condition for sending a new or changed row
    tombstone_when  the condition for sending a deleted row, as a tombstone
    sinks           the names of the stores that get the rows; None: every configured store
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
        """Return a message key for the tombstone of a deleted row. No other row has this key.

        Several rows, such as the windows of a series, can share one message key. A message with this key and
        a null value would remove all of them from a compacted topic.
        """
        names = self.identity or ()
        return F.concat_ws(":", self.key(), *(self.value.values[name]().cast("string") for name in names))


@dataclass(frozen=True)
class Quantiles:
    """The columns with estimated quantiles of `value`, and the rank of each one.

    `keyed` adds the table's key to clean rows. Quantiles are exact for groups of up to `exact_to` values;
    beyond that, the rank error is at most `limit`. `count` is the column with the number of values.
    """

    value: str
    ranks: Mapping[str, float]
    keyed: Callable[[DataFrame], DataFrame]
    exact_to: int
    limit: float
    count: str = "count"


@dataclass(frozen=True)
class Comparison:
    """The rules for comparing each column of a gold row with the row recomputed from silver.

    The columns in `ignored` are not compared, because they do not depend on silver's rows alone. Those in
    `present` must be null in both rows or in neither: sketches, for example, depend on the order of rows. All
    other values must be exactly equal, except that doubles may have a relative error of 1e-9. For doubles in
    `slack`, a Column on the recomputed row is added to this tolerance. A struct's fields are compared one by
    one, under names such as `state.sketch`.
    """

    ignored: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    slack: Callable[[], Mapping[str, Column]] = dict
    quantiles: tuple[Quantiles, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MergedTable:
    """The properties that all gold tables share: grain, row times and export.

    name             the table's name in gold
    comment          a description of a row, shown in catalogs
    keys             the columns that identify a row
    schema           all columns
    time_columns     the columns with a row's first and last time, used for file skipping; None: no times
    window           the length of its windows; None: rows are not windows
    pinned_settings  settings that determine the content, as text: if they change, the table is refused until
                     a rebuild; if its keys or window length change, it is refused for good
    stats            further columns with min/max statistics, used for file skipping
    comparison       how a row is compared with its recomputation
    final            the condition for rows that no longer change with time; None: no column shows this
    export           how its rows are exported
    """

    name: str
    comment: str = ""
    keys: tuple[str, ...]
    schema: StructType
    time_columns: tuple[str, str] | None = None
    window: WindowLength | None = None
    pinned_settings: Mapping[str, str] = field(default_factory=dict)
    stats: tuple[str, ...] = ()
    comparison: Comparison = Comparison()
    final: Equals | None = None
    export: Export


@dataclass(frozen=True, kw_only=True)
class SideTable(MergedTable):
    """A table that is maintained with a main table, in the same micro-batch.

    `rows(folded)` returns the side table's new rows, one per key, from the result of the main table's fold.
    The side table's keys are columns in the main table's partials.
    """

    rows: Callable[[DataFrame], DataFrame]


def only(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of the only silver table that a gold table reads, unchanged."""
    (frame,) = frames.values()
    return frame


@dataclass(frozen=True)
class FoldState:
    """Columns that only the next fold of a row needs. Maintenance sets them to null when it clears them.

    columns         their names
    until           a time column: records at or after this event time do not change the row
    settled         the condition for rows that no longer change with time alone; only such rows are cleared
    unsettled_from  maps the progress to a time, or None if unknown; rows that begin later are not cleared
    """

    columns: tuple[str, ...]
    until: str
    settled: Callable[[], Column]
    unsettled_from: Callable[[EventTimeProgress], datetime | None]


@dataclass(frozen=True, kw_only=True)
class GoldTable(MergedTable):
    """A merged table and the transformations that maintain it.

    reads            the silver tables that it reads
    combine          merges their rows into one frame
    preaggregate     reduces a micro-batch's clean rows as far as possible without reading the table
    counted          an aggregate over the result of `preaggregate`: the number of clean rows in it
    fold             takes that result, the current rows and the progress; returns new, changed and deleted
                     rows, one per key; deleted rows are marked by `tables.DELETED`
    clock            the clock that changes rows without new records; None: no clock
    merge_radius     a fold gets the current rows within this distance in time of the micro-batch
    needs_recompute  returns the keys that a fold cannot maintain: they are recomputed from all silver rows up
                     to the micro-batch; their partials have a column `recomputed`
    totals           maps each column that is null if its sum does not fit in its type to the column with the
                     number of rows: such a key is set aside (ops.keys_set_aside), and other keys continue
    sides            tables that are maintained with this one
    state            columns that only a fold needs; maintenance clears them once no fold can need them
    merge_every_s    in a live run, how long rows may wait in silver to be merged (for rarely queried tables)
    """

    reads: tuple[str, ...]
    preaggregate: Callable[[DataFrame], DataFrame]
    fold: Callable[[DataFrame, DataFrame, EventTimeProgress], DataFrame]
    combine: Callable[[Mapping[str, DataFrame]], DataFrame] = only
    counted: Callable[[], Column] = lambda: F.sum("count")
    clock: EventClock | WallClock | None = None
    merge_radius: timedelta = timedelta(0)
    needs_recompute: Callable[[DataFrame, DataFrame], DataFrame] | None = None
    totals: Mapping[str, str] = field(default_factory=dict)
    sides: tuple[SideTable, ...] = ()
    state: FoldState | None = None
    merge_every_s: int = 0

    @property
    def wall_clock(self) -> WallClock | None:
        """The wall clock that changes rows, or None if there is none.

        An EventClock's `when_idle` changes rows only while no events arrive.
        """
        return self.clock.when_idle if isinstance(self.clock, EventClock) else self.clock


@dataclass(frozen=True)
class Stream:
    """A pipeline: its sources, its gold tables and its exports.

    name     the stream's name in commands
    sources  Kafka topics, each read into one bronze and one silver table
    gold     the gold tables built from the sources
    suites   the package with the expectation suites for its tables, `<layer>.<table>`; a table without a
             suite gets the common expectations for its kind
    """

    name: str
    sources: tuple[Source, ...]
    gold: tuple[GoldTable, ...] = field(default=())
    suites: str = OWN_SUITES

    def __post_init__(self) -> None:
        """Raise ValueError if a table joins records by distance in time although they can be corrected."""
        corrected = {source.table for source in self.sources if source.sequence_by is not None}
        joined = [one.name for one in self.gold if one.merge_radius and corrected.intersection(one.reads)]
        if joined:
            raise ValueError(
                f"stream {self.name}: gold.{joined[0]} joins records by their distance in time and "
                "cannot apply corrections: remove sequence_by"
            )

    @property
    def tables(self) -> tuple[MergedTable, ...]:
        """All gold tables, each followed by its side tables."""
        return tuple(kept for table in self.gold for kept in (table, *table.sides))

    @property
    def topics(self) -> tuple[str, ...]:
        """The default names of all topics that the stream reads or writes."""
        written = (table.export.topic for table in self.tables)
        return (*(source.topic for source in self.sources), *(topic for topic in written if topic))
