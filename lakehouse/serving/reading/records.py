"""Find one Kafka record in every layer, without Spark and without reading its content.

A record is identified by its topic, partition and offset, which are the key of bronze and silver tables:

    bronze    the row, or why not: bronze's position, ops.data_losses, ops.retention
    silver    the row, a dead letter, or both; or silver's backlog in bronze
    gold      the rows whose key the silver row determines (`lakehouse.serving.reading.row_keys`)
    sent      gold's version, and the version that the export has sent, as in `lakehouse status`

A gold row merges many records, so "there" means that the row with this key exists, and `reason` says if the
record might still be waiting to be merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import cast

import pyarrow as pa
import pyarrow.dataset as ds

from lakehouse.common.errors import SettingsError
from lakehouse.common.nearest import did_you_mean, nearest, shown
from lakehouse.engine.ops_tables.data_losses import DATA_LOSSES
from lakehouse.engine.ops_tables.retained import RETENTION
from lakehouse.operations.telemetry import Observation, StreamState
from lakehouse.serving.reading import delta, record_reasons, row_keys
from lakehouse.serving.reading.dead_letters import Letters
from lakehouse.serving.reading.delta import NoTableError, Snapshot, Table
from lakehouse.serving.reading.found_records import (
    FoundRecord,
    InBronze,
    InGold,
    InSilver,
    InStream,
    LetterOf,
    Place,
    Sent,
)
from lakehouse.serving.reading.gold import Gold, is_time
from lakehouse.settings import Settings
from lakehouse.sinks import registry as sinks
from lakehouse.storage.tables.specs import TableSpec, from_micros, path_of
from lakehouse.streams.contract import COORDINATES
from lakehouse.streams.definition import GoldTable, MergedTable, Source, Stream
from lakehouse.streams.messages.layout import Row

_MOST_PLACES = 20
_LONG = 2**63


@dataclass(frozen=True)
class _Wanted:
    """A record, a stream that reads its topic, that stream's source for the topic, and the stream's state."""

    place: Place
    stream: Stream
    source: Source
    state: StreamState

    @property
    def bronze(self) -> str:
        return f"bronze.{self.source.table}"

    @property
    def silver(self) -> str:
        return f"silver.{self.source.table}"

    @property
    def gold(self) -> list[tuple[GoldTable, MergedTable]]:
        """The gold tables that read the source, and their side tables, as pairs of main table and table."""
        mains = [main for main in self.stream.gold if self.source.table in main.reads]
        return [(main, table) for main in mains for table in (main, *main.sides)]


class RecordSearch:
    """A search for records in a lake.

    All methods block. They raise TableAwayError if a table cannot be read; a missing table counts as empty.
    """

    def __init__(self, streams: Sequence[Stream], settings: Settings, gold: Gold, letters: Letters) -> None:
        self._settings = settings
        self._gold, self._letters = gold, letters
        self._sources = [(stream, source) for stream in streams for source in stream.sources]
        self._bronze = {one.table: self._table("bronze", one.table) for _, one in self._sources}
        self._silver = {one.table: self._table("silver", one.table) for _, one in self._sources}
        self._losses, self._retention = self._of(DATA_LOSSES), self._of(RETENTION)
        tables = (table for stream in streams for table in stream.tables)
        self._stores = {table.name: _stores_of(table, settings) for table in tables}
        self.topics = tuple(sorted({settings.topic(source.topic) for _, source in self._sources}))

    @property
    def streams_with_ids(self) -> tuple[str, ...]:
        """The names of the streams whose records have ids (`unique_by`)."""
        return tuple(dict.fromkeys(stream.name for stream, source in self._sources if source.id_column))

    def unread_topic(self, topic: str) -> str | None:
        """Return an error message that lists the known topics, or None if a stream reads this topic."""
        if topic in self.topics:
            return None
        near = nearest(topic, self.topics)
        meant = f"; {did_you_mean(near)}" if near else ""
        return f"no stream reads topic {shown(topic)}, only {', '.join(self.topics)}{meant}"

    def find(self, place: Place, seen: Observation) -> FoundRecord:
        """Return where the record is in each layer. `seen` is an earlier observation of the same streams."""
        states = {
            state.name: replace(state, lake_reason=seen.lake_reason or state.lake_reason)
            for state in seen.streams
        }
        found = (
            self._in_stream(_Wanted(place, stream, source, states[stream.name]))
            for stream, source in self._sources
            if self._settings.topic(source.topic) == place.topic
        )
        return FoundRecord(place.topic, place.partition, place.offset, tuple(found))

    def places_of_id(self, id_: str) -> list[Place]:
        """Return the coordinates of at most twenty records with this id, from silver and the dead letters.

        Only streams whose records have ids (`unique_by`) are searched.
        """
        found = set[Place]()
        for stream, source in self._sources:
            if source.id_column is not None:
                rows = _all_of(self._silver[source.table], _with_id(source.id_column, id_))
                letters = self._letters.with_unique_id(stream.name, id_).value
                found |= {_place(row) for row in (*rows, *letters)}
        return sorted(found)[:_MOST_PLACES]

    def places_of_letter(self, prefix: str) -> list[Place]:
        """Return the coordinates of at most twenty records whose dead letter has an id with this prefix."""
        return sorted({_place(row) for row in self._letters.beginning(prefix).value})[:_MOST_PLACES]

    def _table(self, layer: str, name: str) -> Table:
        return Table(path_of(self._settings.lake, layer, name))

    def _of(self, spec: TableSpec) -> Table:
        return self._table(spec.layer, spec.name)

    def _in_stream(self, wanted: _Wanted) -> InStream:
        place, name = wanted.place, wanted.stream.name
        bronze = self._in_bronze(wanted)
        rows = self._letters.of_record(name, place.topic, place.partition, place.offset).value
        letters, row = tuple(map(_letter, rows)), self._silver_row(wanted)
        silver = self._in_silver(wanted, row, bronze, letters)
        gold = (self._in_gold(wanted, main, table, row) for main, table in wanted.gold)
        return InStream(name, bronze, silver, letters, tuple(gold))

    def _in_bronze(self, wanted: _Wanted) -> InBronze:
        place, table = wanted.place, self._bronze[wanted.source.table]
        row = delta.read_or(table, _row_at(place, ("timestamp", "ingested_at")), None).value
        if row is None:
            why = record_reasons.not_landed(wanted.state, place.topic, place.partition, place.offset)
            return InBronze(wanted.bronze, is_there=False, reason=why or self._why_gone(wanted))
        return InBronze(
            wanted.bronze,
            is_there=True,
            kafka_timestamp=_moment(row["timestamp"]),
            ingested_at=_moment(row["ingested_at"]),
        )

    def _why_gone(self, wanted: _Wanted) -> str:
        """Return the reason why bronze has no row for an offset that it has read past."""
        place, source = wanted.place, wanted.source
        for row in _all_of(self._losses, _losses_at(place)):
            first, last = row["first_offset"], row["last_offset"]
            return f"skipped: ops.data_losses lists offsets {first:,} to {last:,}, recorded by {row['query']}"
        taken = [
            one["last"]
            for row in _all_of(self._retention, _retained(wanted.bronze))
            for one in row["gone"] or ()
            if (one["topic"], one["partition"]) == (place.topic, place.partition)
        ]
        if taken and place.offset <= max(taken):
            return f"deleted by retention, which has deleted the partition up to offset {max(taken):,}"
        if delta.read_or(self._bronze[source.table], _has_before(place), nothing=False).value:
            return (
                "bronze has read past this offset: it is a transaction marker, or an aborted or compacted "
                "record, or another writer has deleted the row"
            )
        start = "" if source.start == "earliest" else f", or start = {source.start!r} excluded it"
        return f"before the first record that bronze read: Kafka no longer had it{start}"

    def _silver_row(self, wanted: _Wanted) -> Row | None:
        """Return the event time and the gold key columns of the record's silver row, without the payload."""
        keys = (row_keys.columns_for(wanted.source, table) for _, table in wanted.gold)
        columns = tuple(dict.fromkeys(("event_time", *(name for names in keys for name in names))))
        return delta.read_or(self._silver[wanted.source.table], _row_at(wanted.place, columns), None).value

    def _in_silver(
        self, wanted: _Wanted, row: Row | None, bronze: InBronze, letters: Sequence[LetterOf]
    ) -> InSilver:
        if row is not None:
            return InSilver(wanted.silver, is_there=True, event_time=_moment(row["event_time"]))
        if letters:
            why = "it is a dead letter"
        elif bronze.is_there:
            why = record_reasons.unread(wanted.state, wanted.silver, wanted.bronze) or (
                f"{wanted.silver} has read all of {wanted.bronze}, so another writer has deleted the row or "
                "the dead letter; `lakehouse audit` compares the tables"
            )
        elif _all_of(self._retention, _retained(wanted.silver)):
            why = "bronze does not contain it; if silver had a row, retention has deleted it"
        else:
            why = "bronze does not contain it"
        return InSilver(wanted.silver, is_there=False, reason=why)

    def _in_gold(self, wanted: _Wanted, main: GoldTable, table: MergedTable, row: Row | None) -> InGold:
        name, sent = f"gold.{table.name}", self._sent(table, wanted.state)
        if row is None:
            why = f"the key is unknown, because {wanted.silver} has no row for the record"
            return InGold(name, None, None, why, sent)
        key = row_keys.key_of(wanted.source, main, table, row)
        if key.columns is None:
            return InGold(name, None, None, key.reason, sent)
        is_there = self._has_row(table, key.columns)
        told = {one: _moment(to) if is_time(table, one) else to for one, to in key.columns.items()}
        unread = record_reasons.unread(wanted.state, f"gold.{main.name}", wanted.silver)
        return InGold(name, told, is_there, unread or _why_no_row(main, table, is_there=is_there), sent)

    def _has_row(self, table: MergedTable, key: Row) -> bool:
        try:
            return bool(self._gold.row(table, key).rows)
        except NoTableError:
            return False

    def _sent(self, table: MergedTable, state: StreamState) -> Sent:
        name, query_name = f"gold.{table.name}", f"export.{table.name}"
        query = next((one for one in state.queries if one.name == query_name), None)
        version = next((one.version for one in state.tables if one.name == name), None)
        topic = table.export.topic
        return Sent(
            topic=None if topic is None else self._settings.topic(topic),
            stores=self._stores[table.name],
            version=version,
            sent_version=None if query is None else query.done,
            sent_at=None if query is None else query.done_at,
            rows_waiting=record_reasons.rows_waiting(state, query_name, name),
            behind=() if query is None else record_reasons.behind(query),
            reason=record_reasons.unsent(state, query, name, version),
        )


def _stores_of(table: MergedTable, settings: Settings) -> tuple[str, ...]:
    """Return the names of the stores that a table is exported to, besides Kafka."""
    try:
        return tuple(kind.name for kind in sinks.used_by(table, settings))
    except SettingsError:  # a run refuses these settings
        return ()


def _why_no_row(main: GoldTable, table: MergedTable, *, is_there: bool) -> str | None:
    if is_there:
        return None
    if table is not main:
        return f"gold.{main.name} has merged every row, but this record has no row in gold.{table.name}"
    return "every row is merged; later records, retention or a rebuild have removed the row with this key"


def _all_of(table: Table, read: delta.Read[list[Row]]) -> list[Row]:
    """Return the rows that `read` finds in a table, or an empty list if there is no table."""
    nothing: list[Row] = []
    return delta.read_or(table, read, nothing).value


def _at(place: Place) -> list[ds.Expression]:
    values = (place.topic, place.partition, place.offset)
    return [delta.equals(name, value) for name, value in zip(COORDINATES, values, strict=True)]


def _row_at(place: Place, columns: Sequence[str]) -> delta.Read[Row | None]:
    """Return a function that reads the given columns of the row with these Kafka coordinates."""

    def read(snapshot: Snapshot) -> Row | None:
        return next(iter(delta.all_rows(snapshot, columns, _at(place))), None)

    return read


def _has_before(place: Place) -> delta.Read[bool]:
    """Return a function that tells whether a table has a row with an earlier offset of the same partition."""
    where = [*_at(place)[:2], cast("ds.Expression", ds.field("offset") < place.offset)]

    def read(snapshot: Snapshot) -> bool:
        return any(part.num_rows for part in snapshot.rows(("offset",), delta.everything(where)))

    return read


def _losses_at(place: Place) -> delta.Read[list[Row]]:
    first, last = ds.field("first_offset") <= place.offset, ds.field("last_offset") >= place.offset
    where = [*_at(place)[:2], cast("ds.Expression", first & last)]
    return lambda snapshot: delta.all_rows(snapshot, ("first_offset", "last_offset", "query"), where)


def _retained(table: str) -> delta.Read[list[Row]]:
    return lambda snapshot: delta.all_rows(snapshot, ("table", "gone"), [delta.equals("table", table)])


def _with_id(column: str, id_: str) -> delta.Read[list[Row]]:
    """Return a function that reads the Kafka coordinates of the rows whose id column has this value."""

    def read(snapshot: Snapshot) -> list[Row]:
        kind = snapshot.dataset.schema.field(column).type if column in snapshot.dataset.schema.names else None
        if kind is None:
            return []
        value: str | int | None = id_
        if pa.types.is_integer(kind):
            is_whole = id_.removeprefix("-").isdecimal() and id_.isascii()
            value = int(id_) if is_whole and -_LONG <= int(id_) < _LONG else None
        return [] if value is None else delta.all_rows(snapshot, COORDINATES, [delta.equals(column, value)])

    return read


def _place(row: Row) -> Place:
    return Place(row["topic"], row["partition"], row["offset"])


def _letter(row: Row) -> LetterOf:
    reasons = tuple(dict(one) for one in row["reasons"] or ())
    return LetterOf(row["id"], row["status"], _moment(row["first_seen"]), reasons)


def _moment(micros: int | None) -> datetime | None:
    """Convert epoch microseconds to a UTC time, or to None if Python cannot represent the time."""
    try:
        return None if micros is None else from_micros(micros)
    except OverflowError:
        return None
