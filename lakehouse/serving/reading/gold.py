"""Read gold rows from Delta tables: a row by its key, a member's latest row, or a page sorted by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql.types import AtomicType, BinaryType, TimestampType

from lakehouse.serving.reading import delta
from lakehouse.serving.reading.delta import FirstRows, Order, Snapshot, Table
from lakehouse.storage.tables.specs import path_of
from lakehouse.streams.definition import GoldTable, MergedTable
from lakehouse.streams.messages.layout import Equals, OfColumns, Row

_MILLI = 1000


@dataclass(frozen=True)
class RowSelection:
    """A selection of rows that match `where` and have a time in [start_us, end_us).

    Times are in microseconds since the epoch, and None means no bound. `after` contains the sort values of
    the previous page's last row. The oldest rows come first unless `newest_first` is set.
    """

    start_us: int | None = None
    end_us: int | None = None
    where: Mapping[str, Any] | None = None
    after: tuple[Any, ...] | None = None
    newest_first: bool = False


@dataclass(frozen=True)
class GoldRows:
    """Rows from one version of a table. `has_more` is true if there are more rows."""

    generation: int
    version: int
    rows: list[Row]
    has_more: bool = False


class Gold:
    """The gold tables in a lake. All methods block; reads raise NoTableError or TableAwayError."""

    def __init__(self, lake: str, kept: Iterable[MergedTable]) -> None:
        self._tables = {table.name: Table(path_of(lake, "gold", table.name)) for table in kept}

    def versions(self) -> dict[str, tuple[int, int]]:
        """Return the generation and version of each readable table, keyed by SQL name."""
        return delta.versions_of({f"gold.{name}": table for name, table in self._tables.items()})

    def row(self, table: MergedTable, key: Row) -> GoldRows:
        """Return the row with this key. Times match if they agree to the millisecond, as in messages."""
        return self._read(table, lambda snapshot: _some(snapshot, table, _matches(table, key), most=1))

    def rows_of(self, table: MergedTable, keys: Row, start_us: int, end_us: int) -> GoldRows:
        """Return the rows with these key values and a time in [start_us, end_us), in epoch microseconds."""
        conditions = _matches(table, keys) + _between(table, start_us, end_us)
        return self._read(table, lambda snapshot: _some(snapshot, table, conditions))

    def latest(self, table: MergedTable, keys: Row) -> GoldRows:
        """Return the latest exported row with these key values, in the order that the Redis view defines."""
        return self._read(table, lambda snapshot: _latest(snapshot, table, keys))

    def latest_of_members(self, table: MergedTable, keys: Row, after: str | None, most: int) -> GoldRows:
        """Return the latest exported row of each member in the table's Redis view, one page at a time.

        Members are sorted by name. The page contains the first `most` members after the name `after`. `keys`
        filters the rows.
        """
        return self._pages(table, lambda snapshot: _latest_of_members(snapshot, table, keys, after, most))

    def page(self, table: MergedTable, span: RowSelection, most: int) -> GoldRows:
        """Return the first `most` rows of a selection, sorted by the columns that `sorted_by` returns."""
        return self._pages(table, lambda snapshot: _page(snapshot, table, span, most))

    def _read(self, table: MergedTable, read: Callable[[Snapshot], list[Row]]) -> GoldRows:
        return self._pages(table, lambda snapshot: FirstRows(read(snapshot)))

    def _pages(self, table: MergedTable, read: Callable[[Snapshot], FirstRows]) -> GoldRows:
        def found(snapshot: Snapshot) -> GoldRows:
            first = read(snapshot)
            return GoldRows(snapshot.generation, snapshot.version, first.rows, first.has_more)

        return delta.read(self._tables[table.name], found)


def columns_of(table: MergedTable) -> tuple[str, ...]:
    """Return the names of the table's columns that API responses need."""
    view, message = table.export.redis, table.export.value
    parts: list[OfColumns] = [*message.values.values(), view.row_key, view.group, view.member, view.order]
    final = () if table.final is None else (table.final.column,)
    time = () if table.time_columns is None else table.time_columns[:1]
    named = (name for part in parts for name in part.columns)
    return tuple(dict.fromkeys((*table.keys, *time, *named, *final)))


def others_of(table: MergedTable) -> tuple[str, ...]:
    """Return the columns that are neither in the table's messages nor in its key.

    Columns that only folds need, and binary and nested columns, are left out.
    """
    known = {name for value in table.export.value.values.values() for name in value.columns}
    known |= {*table.keys, *(() if table.final is None else (table.final.column,))}
    state = table.state if isinstance(table, GoldTable) else None
    known |= set(() if state is None else state.columns)
    return tuple(
        one.name
        for one in table.schema
        if one.name not in known and isinstance(one.dataType, AtomicType) and one.dataType != BinaryType()
    )


def sorted_by(table: MergedTable) -> tuple[str, ...]:
    """Return the columns by which pages are sorted: the row's time, then its key."""
    time = () if table.time_columns is None else table.time_columns[:1]
    return tuple(dict.fromkeys((*time, *table.keys)))


def is_time(table: MergedTable, column: str) -> bool:
    """Return whether a column contains timestamps."""
    return isinstance(table.schema[column].dataType, TimestampType)


def _some(
    snapshot: Snapshot, table: MergedTable, conditions: Sequence[ds.Expression], most: int | None = None
) -> list[Row]:
    columns, found = columns_of(table), list[Row]()
    for part in snapshot.rows(columns, delta.everything(conditions)):
        found += delta.as_rows(part, columns)
        if most is not None and len(found) >= most:
            return found[:most]
    return found


def _latest(snapshot: Snapshot, table: MergedTable, keys: Row) -> list[Row]:
    columns, order = columns_of(table), table.export.redis.order
    best = list[Row]()
    for part in snapshot.rows(columns, delta.everything(_matches(table, keys) + _left(table))):
        if order.columns:
            first = part[order.columns[0]]
            part = part.filter(pc.equal(first, pc.max(first)))  # noqa: PLW2901 - narrowed
        best += delta.as_rows(part, columns)
    return [max(best, key=order.of)] if best else []


def _latest_of_members(
    snapshot: Snapshot, table: MergedTable, keys: Row, after: str | None, most: int
) -> FirstRows:
    """Return the latest rows of a page of members. Only these members' newest rows are held in memory."""
    columns, view = columns_of(table), table.export.redis
    (column,), order = view.member.columns, view.order.columns
    conditions = _matches(table, keys) + _left(table)
    conditions += (
        [] if after is None else Order({column: "ascending"}, (after,)).beyond(snapshot.dataset.schema)
    )
    first: pa.Table | None = None
    has_more = False
    for part in snapshot.rows(columns, delta.everything(conditions)):
        both = part if first is None else pa.concat_tables([first, part])
        newest = _greatest(both, [column], order[0]) if order else both
        names = pc.drop_null(pc.unique(newest[column]))
        names = names.take(pc.sort_indices(names))
        has_more = has_more or len(names) > most
        first = newest.filter(pc.is_in(newest[column], value_set=names[:most])).combine_chunks()
    best = dict[str, Row]()
    for row in [] if first is None else delta.as_rows(first, columns):
        member = str(view.member.of(row))
        if member not in best or view.order.of(best[member]) < view.order.of(row):
            best[member] = row
    return FirstRows([best[member] for member in sorted(best)], has_more)


def _greatest(part: pa.Table, members: list[str], order: str) -> pa.Table:
    """For each member, return the rows with the greatest value in the column `order`."""
    most = part.group_by(members).aggregate([(order, "max")]).rename_columns([*members, order])
    return part.join(most, [*members, order], join_type="left semi")


def _page(snapshot: Snapshot, table: MergedTable, span: RowSelection, most: int) -> FirstRows:
    conditions = _matches(table, span.where or {}) + _between(table, span.start_us, span.end_us)
    direction: Literal["ascending", "descending"] = "descending" if span.newest_first else "ascending"
    order = Order(dict.fromkeys(sorted_by(table), direction), span.after)
    columns = tuple(dict.fromkeys((*columns_of(table), *others_of(table))))
    return delta.first_rows(snapshot, columns, conditions, order=order, most=most)


def _matches(table: MergedTable, keys: Row) -> list[ds.Expression]:
    """Return filters for rows with these column values. Times match if they agree to the millisecond."""
    conditions = []
    for column, value in keys.items():
        if is_time(table, column):
            first = value // _MILLI * _MILLI
            conditions += [delta.since(column, first), delta.before(column, first + _MILLI)]
        else:
            conditions.append(delta.equals(column, value))
    return conditions


def _between(table: MergedTable, start_us: int | None, end_us: int | None) -> list[ds.Expression]:
    if table.time_columns is None:
        return []
    column = table.time_columns[0]
    first = [] if start_us is None else [delta.since(column, start_us)]
    return first + ([] if end_us is None else [delta.before(column, end_us)])


def _left(table: MergedTable) -> list[ds.Expression]:
    """Return a filter for rows exported to Redis, or none if the export condition is not a simple filter."""
    leaves = table.export.export_when
    return [delta.equals(leaves.column, leaves.value)] if isinstance(leaves, Equals) else []
