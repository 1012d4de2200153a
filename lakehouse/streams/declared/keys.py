"""The keys that a table `[streams.NAME]` can contain: one class per kind, which also builds the stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, model_validator
from pydantic import Field as Key

from lakehouse.common.record_lines import RecordFormat
from lakehouse.streams.contract import FieldType, TimeUnit
from lakehouse.streams.declared.envelopes import in_debezium
from lakehouse.streams.declared.rules import RuleKeys
from lakehouse.streams.declared.values import (
    DeletedIf,
    DeletionKey,
    Destination,
    Duration,
    FieldKeys,
    Fields,
    Id,
    Length,
    Moment,
    Name,
    OneField,
    Path,
    Start,
    Table,
    Threshold,
    Topic,
    WindowSize,
    Zone,
    matching,
)
from lakehouse.streams.definition import Field, Stream
from lakehouse.streams.kinds import (
    Aggregates,
    Records,
    Selected,
    Side,
    Windows,
    joined_calls,
    running_totals,
    sql,
    windowed_statistics,
    windowed_sums,
)
from lakehouse.streams.messages import layout
from lakehouse.streams.window_lengths import window_length

_COLUMN = re.compile(r"\{(\w+)\}")


def _check_window_zone(zone: str, info: ValidationInfo) -> str:
    """Refuse a zone unless the length is a day, week or month. Pydantic validates `length` before `zone`."""
    length = info.data.get("length")  # missing if the length itself is refused
    if length is not None:
        window_length(length, zone)
    return zone


WindowZone = Annotated[Zone, AfterValidator(_check_window_zone)] | None
"""The zone of windows whose length is a day, week or month."""


class SourceKeys(Table):
    """The keys for a source: its topic, and how its records are read; see `lakehouse.streams.Records`."""

    topic: Topic | None = None
    event_time: Path | None = None
    event_time_unit: TimeUnit | None = None
    event_time_zone: Zone | None = None
    fields: list[OneField] = Key(default_factory=list)
    rules: list[RuleKeys] = Key(default_factory=list)
    unique_by: Id | None = None
    sequence_by: Id | None = None
    deletion_key: DeletionKey | None = None
    deleted_if: DeletedIf | None = None
    format: RecordFormat | None = None
    start: Start | None = None
    allowed_lateness: Duration | None = None
    future_tolerance: Duration | None = None
    earliest_event_time: Moment | None = None


class GoldKeys(Table):
    """The keys for a gold table's export."""

    to: Destination = None
    emit: Literal["changes", "final"] | None = None
    sinks: list[str] | None = None


class Changes(SourceKeys):
    """The keys that change a stream of any kind.

    If the stream has one source, the keys in SourceKeys apply to it. If it has several sources, `sources`
    maps each source's table name to the source's keys.
    """

    enabled: bool = True
    suites: Name | None = None
    sources: dict[str, SourceKeys] = Key(default_factory=dict)
    gold: dict[str, GoldKeys] = Key(default_factory=dict)
    arguments: dict[str, Any] = Key(default_factory=dict)

    @property
    def by_table(self) -> Mapping[str, SourceKeys]:
        """The keys of each source, keyed by the source's table name."""
        return self.sources


class InPython(Changes):
    """A stream in a Python module. `python` is `module:OBJECT`: a Stream, or a function that returns one."""

    python: Annotated[str, matching(r"[\w.]+:[\w.]+", "module:OBJECT")]


class NewSource(SourceKeys):
    """The keys for the source of a new stream. The topic is required."""

    topic: Topic
    table: Name | None = None

    def records(self) -> Records:
        """Build the `Records` of this topic and table. `changed` applies the other keys later."""
        return Records(self.topic, table=self.table)


class OfKind(Table):
    """The keys that all kinds share."""

    enabled: bool = True
    suites: Name | None = None
    gold: dict[str, GoldKeys] = Key(default_factory=dict)

    @property
    def by_table(self) -> Mapping[str, SourceKeys]:
        """The keys of each source, keyed by the source's table name."""
        return {}

    def stream(self, name: str) -> Stream:
        """Return the stream with this name. `changed` applies the remaining keys to it."""
        raise NotImplementedError

    def sources_in_order(self) -> tuple[SourceKeys, ...]:
        """Return the keys for the stream's sources, in the order of the sources."""
        raise NotImplementedError


class OfOneTopic(OfKind, NewSource):
    """The keys for a kind that reads a single topic."""

    envelope: Literal["debezium"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _open_envelope(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return in_debezium(given) if given.get("envelope") == "debezium" else given

    def sources_in_order(self) -> tuple[SourceKeys, ...]:
        """Return the stream's keys, which include those for its only source."""
        return (self,)


class WindowedSums(OfOneTopic):
    """The keys for `windowed_sums`."""

    kind: Literal["windowed_sums"]
    by: Fields
    value: OneField
    length: WindowSize
    zone: WindowZone = None
    signed: bool = False
    gold_table: Name | None = None
    to: Destination = None
    group: Name | None = None
    comment: str | None = None

    def stream(self, name: str) -> Stream:
        """Return the stream of windowed sums."""
        return windowed_sums(
            name,
            self.records(),
            by=_fields(self.by),
            value=self.value.of(FieldType.DECIMAL),
            length=self.length,
            **self.given("zone", "signed", "gold_table", "to", "group", "comment"),
        )


class WindowKeys(Table):
    """The keys for a gold table with statistics: the arguments of `Windows`. `series` is a template."""

    by: Fields
    length: WindowSize
    zone: WindowZone = None
    absent: dict[str, str] | None = None
    gold_table: Name | None = None
    to: Destination = None
    series: Name | None = None
    merge_every: Duration | None = None
    comment: str | None = None

    @model_validator(mode="after")
    def _check_series(self) -> WindowKeys:
        columns = [field.of(FieldType.STRING).column for field in self.by]
        if unknown := [name for name in _COLUMN.findall(self.series or "") if name not in columns]:
            raise ValueError(f"series: {{{unknown[0]}}} is not a key column; known: {', '.join(columns)}")
        return self

    def windows(self) -> Windows:
        """Return the declared windows."""
        given = self.given("zone", "absent", "gold_table", "to", "merge_every", "comment")
        series = None if self.series is None else _key(self.series)
        return Windows(by=_fields(self.by), length=self.length, series=series, **given)


class WindowedStatistics(OfOneTopic):
    """The keys for `windowed_statistics`."""

    kind: Literal["windowed_statistics"]
    value: OneField
    windows: Annotated[list[WindowKeys], Key(min_length=1)]
    grace: Duration | None = None
    idle_after: Length | None = None
    quantile_k: Annotated[int, Key(ge=8, le=65535)] | None = None

    def stream(self, name: str) -> Stream:
        """Return the stream of windowed statistics."""
        return windowed_statistics(
            name,
            self.records(),
            value=self.value.of(FieldType.DOUBLE),
            windows=tuple(one.windows() for one in self.windows),
            **self.given("grace", "idle_after", "quantile_k"),
        )


class RunningTotals(OfOneTopic):
    """The keys for `running_totals`."""

    kind: Literal["running_totals"]
    by: OneField
    value: OneField
    threshold: Threshold
    notify: Literal["crossing", "every_update"] | None = None
    gold_table: Name | None = None
    notifications: Name | None = None
    to: Destination = None
    group: Name | None = None

    def stream(self, name: str) -> Stream:
        """Return the stream of running totals."""
        return running_totals(
            name,
            self.records(),
            by=self.by.of(FieldType.STRING),
            value=self.value.of(FieldType.DECIMAL),
            threshold=self.threshold,
            **self.given("notify", "gold_table", "notifications", "to", "group"),
        )


class SideKeys(NewSource):
    """The keys for one side of a call: its topic and its payload field."""

    payload: OneField

    def side(self) -> Side:
        """Return the declared side."""
        return Side(records=self.records(), payload=self.payload.of(FieldType.JSON))


class JoinedCalls(OfKind):
    """The keys for `joined_calls`."""

    kind: Literal["joined_calls"]
    sides: Annotated[list[SideKeys], Key(min_length=2)]
    pair: Annotated[list[OneField], Key(min_length=2, max_length=2)]
    sources: dict[str, SourceKeys] = Key(default_factory=dict)
    gap: Duration | None = None
    grace: Duration | None = None
    gold_table: Name | None = None
    to: Destination = None

    def stream(self, name: str) -> Stream:
        """Return the stream of joined calls."""
        one, other = _fields(self.pair)
        return joined_calls(
            name,
            tuple(side.side() for side in self.sides),
            pair=(one, other),
            **self.given("gap", "grace", "gold_table", "to"),
        )

    @property
    def by_table(self) -> Mapping[str, SourceKeys]:
        """The keys of each side, keyed by the side's table name."""
        return self.sources

    def sources_in_order(self) -> tuple[SourceKeys, ...]:
        """Return the keys for the sides, which are the stream's sources."""
        return tuple(self.sides)


class SelectedKeys(Table):
    """A computed column: an SQL expression on the columns of a row, and its type."""

    sql: Name
    type: Literal["string", "long", "double", "decimal", "boolean"] = "string"

    def selected(self) -> Selected:
        """Return the declared column."""
        return Selected(self.sql, FieldType(self.type))


OneSelected = Annotated[
    SelectedKeys, BeforeValidator(lambda given: {"sql": given} if isinstance(given, str) else given)
]
"""A computed column, given by its expression if it is a string, or by a table."""


class AggregatesKeys(Table):
    """The keys for a gold table with aggregates: the arguments of `Aggregates`."""

    by: Fields
    aggregates: dict[str, Name]
    select: dict[str, OneSelected] = Key(default_factory=dict)
    where: Name | None = None
    length: WindowSize | None = None
    zone: WindowZone = None
    gold_table: Name | None = None
    to: Destination = None
    group: Name | None = None
    comment: str | None = None

    def table(self) -> Aggregates:
        """Return the declared table."""
        given = self.given("where", "length", "zone", "gold_table", "to", "group", "comment")
        select = {name: one.selected() for name, one in self.select.items()}
        by = tuple(one.name if one.name in select else one.of(FieldType.STRING) for one in self.by)
        return Aggregates(by=by, aggregates=self.aggregates, select=select, **given)


class Sql(OfOneTopic):
    """The keys for `sql`."""

    kind: Literal["sql"]
    tables: Annotated[list[AggregatesKeys], Key(min_length=1)]

    def stream(self, name: str) -> Stream:
        """Return the stream of aggregates."""
        also = _fields(self.fields)
        records = Records(self.topic, table=self.table, also=also)
        return sql(name, records, tables=[one.table() for one in self.tables])

    def sources_in_order(self) -> tuple[SourceKeys, ...]:
        """Return the stream's keys without the fields, which the stream already has."""
        return (self.model_copy(update={"fields": []}),)


KINDS: Mapping[str, type[OfKind]] = {
    "windowed_sums": WindowedSums,
    "windowed_statistics": WindowedStatistics,
    "running_totals": RunningTotals,
    "joined_calls": JoinedCalls,
    "sql": Sql,
}


def _fields(given: list[FieldKeys]) -> tuple[Field, ...]:
    return tuple(field.of(FieldType.STRING) for field in given)


def _key(template: str) -> layout.Key:
    """Return the key for a template such as `environment={environment}:metric={metric_name}`."""
    parts = _COLUMN.split(template)
    named = (layout.Name(part) if place % 2 else part for place, part in enumerate(parts))
    return layout.key(*(part for part in named if part != ""))
