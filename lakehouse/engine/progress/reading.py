"""The tables that a query reads, and its positions in them, as recorded in the tables that it fills.

A query can fill several tables in order, such as dead letters and then clean rows. The commit to the last
table completes the micro-batch. If an earlier table is ahead of the last table, a micro-batch was killed
between the two commits, so it is repeated up to exactly the same position. Between micro-batches, `Reading`
keeps only the state that avoids rereading commits without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from lakehouse.common.errors import PositionError
from lakehouse.engine.progress import parts
from lakehouse.engine.progress.parts import Part
from lakehouse.engine.progress.positions import (
    BEFORE_ALL,
    Transactions,
    application,
    beginning_in,
    moves,
    position_in,
    sources_in,
)
from lakehouse.storage import tables
from lakehouse.storage.tables import Move, Position, from_micros
from lakehouse.storage.tables.entries import LogEntry, total
from lakehouse.storage.tables.log import Mark

_CLOCKS_DIFFER_MS = 60_000  # the maximum difference between writers' clocks
_NOTED_AFTER = 100
"""After this many versions without rows, the position is committed, before log cleanup removes them."""


@dataclass(frozen=True)
class Filled:
    """A table that a query fills; `condition` selects the query's own rows."""

    name: str
    path: str
    condition: str = "true"


@dataclass(frozen=True)
class InMemory:
    """Rows that a commit has just appended to a table, their count, and the version of the commit."""

    rows: DataFrame
    count: int
    version: int


@dataclass(frozen=True)
class Taken:
    """A micro-batch's input: rows and end positions, keyed by table name, and the row count (None: unknown).

    `number` is the target table's version after the commit, and `begins` contains the positions that the
    target recorded before the commit. `reads` describes the input for messages. `size_bytes` is the size of
    the input files, or 0 if they cannot be split. `moves` contains the moves for the target table. `beside`
    contains the moves for each other table, in order, or None if an earlier attempt has already committed
    this micro-batch to that table.
    """

    rows: Mapping[str, DataFrame]
    count: int | None
    number: int
    ends: Mapping[str, Position]
    begins: Mapping[str, Position | None]
    reads: str
    moves: tuple[Move, ...]
    beside: tuple[tuple[Move, ...] | None, ...] = ()
    size_bytes: int = 0

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier attempt wrote part of the micro-batch."""
        return None in self.beside


@dataclass
class Reading:
    """A query's sources (paths, keyed by table name), and the tables that it fills: `beside`, then `target`.

    The query also reads corrected rows from the tables that it `follows`, through their change feeds. From
    other tables, it reads only appends. If another writer has changed rows in a commit, the commit is
    skipped, and `on_foreign` is called with the table's name and the commit.
    """

    spark: SparkSession
    query: str
    sources: Mapping[str, str]
    target: Filled
    beside: Sequence[Filled] = ()
    max_bytes: int = 1 << 40
    follows: Collection[str] = ()
    on_foreign: Callable[[str, LogEntry], None] | None = None
    is_known_empty: bool = False
    is_known_whole: bool = False
    _passed: dict[str, tuple[int, int]] = field(default_factory=dict)
    _told: dict[str, int] = field(default_factory=dict)
    _has_news: bool = False
    _idle: Mapping[str, Mark] = field(default_factory=dict)

    def next(
        self,
        handed: Mapping[str, InMemory],
        until: Mapping[str, int] | None = None,
        max_bytes: int | None = None,
    ) -> Taken | None:
        """Return the next micro-batch's input, or None if there are no unread rows.

        `handed` contains rows in memory, and `until` contains the last version to read; both are keyed by
        table name. `max_bytes` limits the size of the files from each table, if it is lower than the query's
        own limit. Raises PositionError if the positions do not match the tables, and TableError if a commit
        was removed.
        """
        if not self.sources.keys() & handed.keys() and self._is_as_it_was():
            return None
        state = _State.of(self)
        state.refuse_what_does_not_fit()
        most = min(self.max_bytes, max_bytes or self.max_bytes)
        found = {name: self._part(state, name, handed, until or {}, most) for name in self.sources}
        count = total([found[name].count for name in self.sources])
        # Even without rows, commit the position after another writer's commit, so that it is reported only
        # once.
        has_news, self._has_news = self._has_news, False
        if count == 0 and not (state.is_resumed or has_news or self._is_far(state, found)):
            for name, one in found.items():
                self._pass_over(state, name, one.end)
            has_all = all(one.end.version > state.newest[name] for name, one in found.items())
            self._idle = state.marks if has_all else {}
            return None
        return self._taken(state, found, count)

    def _taken(self, state: _State, found: Mapping[str, _Found], count: int | None) -> Taken:
        ends = {name: one.end for name, one in found.items()}
        return Taken(
            {name: one.frame(self.spark, self.sources[name]) for name, one in found.items()},
            count,
            state.marks[self.target.path].version + 1,
            ends,
            state.positions,
            ", ".join(f"{name} {state.first[name]} to {end}" for name, end in ends.items()),
            state.moves(ends),
            tuple(state.moves_beside(place, ends) for place in range(len(self.beside))),
            0 if state.is_resumed else sum(one.size_bytes for one in found.values()),
        )

    def _is_as_it_was(self) -> bool:
        """Return whether all tables are unchanged since the last poll, which found nothing to read."""
        marks = self._idle.items()
        return bool(marks) and all(tables.is_newest(self.spark, path, mark) for path, mark in marks)

    def position(self, name: str) -> Position | None:
        """Return the query's position in a table, or None if it has read nothing."""
        return _State.of(self).positions[name]

    def moved_at(self) -> datetime | None:
        """Return the time (UTC) when the target last recorded the query's position, or None if never."""
        ids = (tables.table_id(self.spark, path) for path in self.sources.values())
        noted = (tables.noted_ms(self.spark, self.target.path, application(self.query, id_)) for id_ in ids)
        last_ms = max((at_ms for at_ms in noted if at_ms is not None), default=None)
        return None if last_ms is None else from_micros(last_ms * 1000)

    def _part(
        self,
        state: _State,
        name: str,
        handed: Mapping[str, InMemory],
        until: Mapping[str, int],
        max_bytes: int,
    ) -> _Found:
        path, first, follows = self.sources[name], state.first[name], name in self.follows
        if state.is_resumed:
            part = parts.between(self.spark, path, first, state.ends[name], follows=follows)
            return _Found.of(self.spark, path, part)
        first = self._behind_passed(name, first)
        memory = handed.get(name)
        if memory is not None and self._comes_next(path, first, memory.version, follows=follows):
            return _Found(memory.rows, memory.count, Position(memory.version + 1))
        end = min(state.newest[name], until.get(name, state.newest[name])) + 1
        if not first.is_beginning and first.version >= end:
            return _Found(None, 0, first)
        part = parts.appends(self.spark, path, first, end, max_bytes=max_bytes, follows=follows)
        self._tell_foreign(name, part)
        while not part.files and not part.end.is_beginning and part.end.version < end:
            # Skip all versions without rows, because an empty result must mean that there are no unread rows.
            part = parts.appends(self.spark, path, part.end, end, max_bytes=max_bytes, follows=follows)
            self._tell_foreign(name, part)
        return _Found.of(self.spark, path, part)

    def _comes_next(self, path: str, first: Position, version: int, *, follows: bool) -> bool:
        """Return whether there are no unread rows between a position and a version."""
        if first.is_beginning or first.version > version:
            return False
        between = parts.entries(self.spark, path, first.version, version)
        return not any(
            entry.is_foreign or (entry.followed if follows else entry.appended) for entry in between
        )

    def _tell_foreign(self, name: str, part: Part) -> None:
        for entry in part.foreign if self.on_foreign is not None else ():
            if entry.version >= self._told.get(name, 0) and self.on_foreign is not None:
                self._told[name] = entry.version + 1
                self._has_news = True
                self.on_foreign(name, entry)

    def _is_far(self, state: _State, found: Mapping[str, _Found]) -> bool:
        return any(
            state.positions[name] is not None and one.end.version - state.first[name].version >= _NOTED_AFTER
            for name, one in found.items()
        )

    def _pass_over(self, state: _State, name: str, end: Position) -> None:
        noted = state.positions[name]
        if noted is not None and not noted.is_beginning and not end.is_beginning:
            self._passed[name] = (noted.version, end.version)

    def _behind_passed(self, name: str, first: Position) -> Position:
        noted, end = self._passed.get(name, (-1, -1))
        return Position(end) if not first.is_beginning and first.version == noted else first


@dataclass(frozen=True)
class _Found:
    """Rows from a table (or None), their count and end position. `size_bytes` is `Part.divisible_bytes`."""

    rows: DataFrame | None
    count: int | None
    end: Position
    size_bytes: int = 0

    @classmethod
    def of(cls, spark: SparkSession, path: str, part: Part) -> _Found:
        return cls(part.frame(spark, path) if part.files else None, part.rows, part.end, part.divisible_bytes)

    def frame(self, spark: SparkSession, path: str) -> DataFrame:
        """Return the rows. Empty frames are created only here, because most polls find no rows."""
        return tables.read(spark, path).limit(0) if self.rows is None else self.rows


@dataclass(frozen=True)
class _Attempt:
    """The last attempt to process a source, as recorded in the tables that are filled before the target.

    `began` is the position at which the query began (None if not recorded); it is used if the query has not
    yet finished a micro-batch. `ends` contains the end position recorded in each table.
    """

    began: Position | None
    ends: tuple[Position, ...]

    @classmethod
    def among(cls, beside: Sequence[Transactions], application_: str) -> _Attempt:
        ends = [(end, one) for one in beside if (end := position_in(one, application_)) is not None]
        began = (beginning_in(ends[0][1], application_) or BEFORE_ALL) if ends else None
        return cls(began, tuple(end for end, _ in ends))

    def end_after(self, position: Position | None) -> Position | None:
        """Return the end position of the attempt, or None if the target table has recorded it, too."""
        beyond = [end for end in self.ends if position is None or position.is_before(end)]
        return beyond[-1] if beyond else None


@dataclass(frozen=True)
class _State:
    """The state in the logs of a query's tables at one moment, keyed by the name of the source table.

    `positions` contains the positions that the target table has recorded (None: no position). `first`
    contains the positions at which the next micro-batch starts. If a micro-batch was killed, `ends` contains
    its end in each source; otherwise, `ends` is empty.
    """

    reading: Reading
    ids: Mapping[str, str]
    newest: Mapping[str, int]
    target_id: str
    marks: Mapping[str, Mark]
    noted: Transactions
    beside: tuple[Transactions, ...]
    positions: Mapping[str, Position | None]
    first: Mapping[str, Position]
    ends: Mapping[str, Position]

    @classmethod
    def of(cls, reading: Reading) -> _State:
        spark, query = reading.spark, reading.query
        filled = [tables.snapshot(spark, one.path) for one in (reading.target, *reading.beside)]
        # Sources are read after the filled tables, so that they contain all rows that are recorded as read.
        sources = {name: tables.snapshot(spark, path) for name, path in reading.sources.items()}
        noted, *beside = (tables.transactions_in(spark, one) for one in filled)
        ids, target_id = {name: tables.id_of(one) for name, one in sources.items()}, tables.id_of(filled[0])
        positions = {name: position_in(noted, application(query, id_)) for name, id_ in ids.items()}
        first, ahead = dict[str, Position](), dict[str, Position]()
        for name, position in positions.items():
            attempt = _Attempt.among(beside, application(query, ids[name], of=target_id))
            first[name] = position or attempt.began or parts.beginning(spark, reading.sources[name])
            if (end := attempt.end_after(position)) is not None:
                ahead[name] = end
        ends = {name: ahead.get(name, first[name]) for name in ids} if ahead else {}
        newest = {name: tables.version_in(one) for name, one in sources.items()}
        paths = (reading.target.path, *(one.path for one in reading.beside), *reading.sources.values())
        snapshots = zip(paths, (*filled, *sources.values()), strict=True)
        marks = {path: tables.mark_of(one) for path, one in snapshots}
        return cls(reading, ids, newest, target_id, marks, noted, tuple(beside), positions, first, ends)

    @property
    def is_resumed(self) -> bool:
        return bool(self.ends)

    def moves(self, ends: Mapping[str, Position]) -> tuple[Move, ...]:
        """Return the moves for the commit to the target table."""
        return tuple(
            move
            for name, end in ends.items()
            if end != self.positions[name]
            for move in moves(self._application(name), self.noted, self.first[name], end)
        )

    def moves_beside(self, place: int, ends: Mapping[str, Position]) -> tuple[Move, ...] | None:
        """Return the moves for the commit to a table in `beside`, or None if it is already committed."""
        noted, of = self.beside[place], self.target_id
        found = tuple(
            move
            for name, end in ends.items()
            if end != position_in(noted, self._application(name, of=of))
            for move in moves(self._application(name, of=of), noted, self.first[name], end)
        )
        return found if found or not self.is_resumed else None

    def _application(self, name: str, *, of: str | None = None) -> str:
        return application(self.reading.query, self.ids[name], of=of)

    def refuse_what_does_not_fit(self) -> None:
        """Raise PositionError if the tables do not match; docs/refused-tables.md lists the cases."""
        query, target = self.reading.query, self.reading.target
        way_out = f"delete {target.path} (and the tables made from it) and run again to rebuild it"
        for name, id_ in self.ids.items():
            position, path = self.positions[name], self.reading.sources[name]
            reached = self.ends.get(name) or position
            if reached is not None and reached.version > self.newest[name] + 1:
                raise PositionError(
                    f"{query} has read version {reached.version - 1} of {name}, whose newest version "
                    f"is {self.newest[name]}: an older copy was restored. Restore the newer copy, or "
                    f"{way_out}"
                )
            others = sorted(sources_in(self.noted, query) - set(self.ids.values()))
            if position is None and others:
                raise PositionError(
                    f"{query} was built from a different {name} (id {', '.join(others)}; {path} has {id_}): "
                    f"{name} was deleted and recreated, or {target.path} belongs to a different lake. "
                    f"Restore a matching set of tables, or {way_out}"
                )
        if not self.is_resumed and not any(self.positions.values()) and not self.reading.is_known_empty:
            self._refuse_unknown_rows()
            self.reading.is_known_empty = True
        if not self.reading.is_known_whole:
            for name, position in self.positions.items():
                self._refuse_another_past(name, position, way_out)
            self.reading.is_known_whole = True

    def _refuse_another_past(self, name: str, position: Position | None, way_out: str) -> None:
        """Raise PositionError if the last version read is newer than the commit that recorded it as read.

        Because the clocks of machines differ a little, the check misses a table that was restored and grew
        again within a minute. The audit detects such a table, because it compares rows.
        """
        spark, path, query = self.reading.spark, self.reading.sources[name], self.reading.query
        if position is None or position.is_beginning or not 0 < position.version <= self.newest[name] + 1:
            return
        read = parts.entry_of(spark, path, position.version - 1)
        noted_ms = tables.noted_ms(spark, self.reading.target.path, self._application(name))
        if read is None or read.committed_ms is None or noted_ms is None:
            return
        younger_ms = read.committed_ms - noted_ms
        if read.is_given_up and younger_ms > 0:
            raise PositionError(
                f"{query} has read version {read.version} of {name}, which a power failure then destroyed; "
                f"its rows will be written again and would count twice. To continue, {way_out}"
            )
        if younger_ms > _CLOCKS_DIFFER_MS:
            raise PositionError(
                f"the version {read.version} of {name} that {query} read differs from the current version "
                f"{read.version}: an older copy was restored and has grown since. Rows written in between "
                f"would be missed. Restore the newer copy, or {way_out}"
            )

    def _refuse_unknown_rows(self) -> None:
        query, spark = self.reading.query, self.reading.spark
        filled = [
            one
            for one in (self.reading.target, *self.reading.beside)
            if tables.has_rows(spark, one.path, one.condition)
        ]
        if filled:
            rows = " and ".join(
                one.path if one.condition == "true" else f"the rows of {one.path} where {one.condition}"
                for one in filled
            )
            raise PositionError(
                f"{query} has no recorded position, but rows already exist in "
                f"{' and '.join(one.name for one in filled)}: another program wrote these rows, or a related "
                "table was deleted. Starting from the beginning would write rows twice. Restore a matching "
                f"set of tables, or delete {rows} (and the tables made from these rows) and run again to "
                "rebuild them"
            )
