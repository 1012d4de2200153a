"""Read Delta tables without Spark. Tables stay open, and each read checks for new commits.

Rows are mappings with timestamps in microseconds since the epoch (UTC), as
`lakehouse.streams.messages.layout` expects. Microseconds can represent times in any year.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Literal, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import SubTreeFileSystem

from lakehouse.common.errors import TableError, first_line
from lakehouse.common.paths import location
from lakehouse.storage.files import arrow_directory
from lakehouse.storage.tables.direct import refuse_files_outside
from lakehouse.storage.tables.watched_log import WatchedLog
from lakehouse.streams.messages.layout import Row

MOST_BYTES = 8 * 1024 * 1024
"""The maximum total size of the rows in a page, in bytes. A single row can be larger."""
_LOOKED_AFTER_S = 0.1
_LOOKED_FAR_AFTER_S = 0.5
_T = TypeVar("_T")
_PART_ROWS = 131_072
_BUFFER, _ROWS = 1024 * 1024, 16  # read sizes for rows with large values
_MICROS = pa.timestamp("us", tz="UTC")


class TableAwayError(Exception):
    """A table cannot be read. The error contains the reader's message."""


class NoTableError(TableAwayError):
    """No table exists at the path, because nothing has been written yet."""


@dataclass(frozen=True)
class Snapshot:
    """One version of a table. `generation` is the time in ms when the table was created, as in the export."""

    generation: int
    version: int
    dataset: ds.Dataset

    def rows(
        self, columns: Sequence[str], where: ds.Expression | None, *, most: int = _PART_ROWS
    ) -> Iterator[pa.Table]:
        """Yield the matching rows, at most `most` at a time. Columns that the table lacks are left out."""
        names = [name for name in columns if name in self.dataset.schema.names]
        try:
            scanner = self.dataset.scanner(
                columns=names, filter=where, batch_size=most, batch_readahead=2, fragment_readahead=2
            )
            for batch in scanner.to_batches():
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise TableAwayError(first_line(error)) from error

    def one(self, column: str, value: str, columns: Sequence[str]) -> Row | None:
        """Return the row with this value in `column`, or None if there is none.

        Other columns can be large, so only the row's row group is read, a few rows at a time.
        """
        try:
            for fragment in self.dataset.get_fragments(equals(column, value)):
                with fragment.open() as source:
                    file = pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER)
                    for group in range(file.num_row_groups):
                        at = pc.index(file.read_row_group(group, [column])[column], value).as_py()
                        if at >= 0:
                            return _row(file, group, at, columns)
        except (OSError, pa.ArrowException) as error:
            raise TableAwayError(first_line(error)) from error
        return None


Read = Callable[[Snapshot], _T]
"""A function that reads a value from a snapshot."""


@dataclass(frozen=True)
class Found(Generic[_T]):
    """A value read from one version of a table. `generation` and `version` are None if there is no table."""

    value: _T
    generation: int | None
    version: int | None


class Table:
    """A Delta table that is read repeatedly. All methods are thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._log = WatchedLog(path)
        self.files = self._log.files
        self._lock = Lock()
        self._table: DeltaTable | None = None
        self._looked = 0.0
        self._looked_after_s = _LOOKED_FAR_AFTER_S if self.files.is_far else _LOOKED_AFTER_S
        self._snapshot: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """Return the newest version of the table. If the table was recreated, reopen it.

        Raises NoTableError if there is no table, and TableAwayError if the table cannot be read.
        """
        with self._lock:
            now = time.monotonic()
            if self._snapshot is not None and now - self._looked < self._looked_after_s:
                return self._snapshot
            try:
                self._snapshot = self._newest()
            except TableNotFoundError as error:
                self._forget()
                raise NoTableError(f"there is no table at {self.path}") from error
            except TableError as error:
                self._forget()
                raise TableAwayError(str(error)) from error
            except (DeltaError, OSError, pa.ArrowException, ValueError) as error:
                self._forget()
                raise TableAwayError(f"{self.path} cannot be read: {first_line(error)}") from error
            self._looked = time.monotonic()
            return self._snapshot

    def forget(self) -> None:
        """Discard the open table, so that the next read reopens it."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._table = self._snapshot = None

    def _newest(self) -> Snapshot:
        log = self._log
        if self._snapshot is None or self._table is None or (log.is_due() and log.is_recreated()):
            self._table = DeltaTable(location(self.path))
        elif not log.has_next():
            return self._snapshot
        else:
            self._table.update_incremental()
        refuse_files_outside(self._table, self.path)
        version = self._table.version()
        log.reach(version, log.stamp(version))
        generation = self._table.metadata().created_time or 0
        # deltalake's own file system has threads that may abort the process.
        system, root = arrow_directory(self.path)
        return Snapshot(
            generation, version, self._table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(root, system))
        )


@dataclass(frozen=True)
class Order:
    """The sort order of pages. The columns are never null, and together they identify a row.

    `after` contains the values of these columns in the previous page's last row. Times are in microseconds.
    """

    columns: Mapping[str, Literal["ascending", "descending"]]
    after: tuple[Any, ...] | None = None

    def beyond(self, schema: pa.Schema) -> list[ds.Expression]:
        """Return a filter for the rows that follow `after`, or no filter if `after` is None."""
        if self.after is None:
            return []
        beyond: ds.Expression | None = None
        for (column, direction), value in reversed(list(zip(self.columns.items(), self.after, strict=True))):
            is_time = column in schema.names and pa.types.is_timestamp(schema.field(column).type)
            one = pa.scalar(value, _MICROS) if is_time else value
            field = ds.field(column)
            past = field > one if direction == "ascending" else field < one
            beyond = past if beyond is None else past | ((field == one) & beyond)
        return [cast("ds.Expression", beyond)]


@dataclass(frozen=True)
class FirstRows:
    """The first rows in a given order. `has_more` is true if there are more rows."""

    rows: list[Row]
    has_more: bool = False


def first_rows(
    snapshot: Snapshot,
    columns: Sequence[str],
    where: Sequence[ds.Expression],
    *,
    order: Order,
    most: int,
    keep: Callable[[pa.Table], pa.Table] = lambda part: part,
) -> FirstRows:
    """Return the first `most` matching rows in the given order, without the rows that `keep` drops.

    If the rows are large, fewer rows are returned (see MOST_BYTES).
    """
    conditions = [*where, *order.beyond(snapshot.dataset.schema)]
    best: pa.Table | None = None
    has_more = False
    for part in snapshot.rows(columns, everything(conditions)):
        kept = keep(part)
        both = kept if best is None else pa.concat_tables([best, kept])
        if both.num_rows:
            indices = pc.sort_indices(both, list(order.columns.items()))[:most]
            best = both.take(indices[: _fitting(both, indices)])
            has_more = has_more or best.num_rows < both.num_rows
    return FirstRows([] if best is None else as_rows(best, columns), has_more)


def read(table: Table, found: Read[_T]) -> _T:
    """Read from the newest version of a table. If the read fails, reopen the table and retry once."""
    try:
        return found(table.snapshot())
    except NoTableError:
        raise
    except TableAwayError:
        table.forget()
    return found(table.snapshot())


def read_or(table: Table, read_: Read[_T], nothing: _T) -> Found[_T]:
    """Return the value read from a table's newest version, or `nothing` if the table does not exist yet."""
    try:
        return read(table, lambda snapshot: Found(read_(snapshot), snapshot.generation, snapshot.version))
    except NoTableError:
        return Found(nothing, None, None)


def versions_of(tables: Mapping[str, Table]) -> dict[str, tuple[int, int]]:
    """Return the generation and version of each readable table, keyed by table name."""
    found = {}

    def look(name: str) -> None:
        with suppress(TableAwayError):
            snapshot = tables[name].snapshot()
            found[name] = snapshot.generation, snapshot.version

    if tables:
        next(iter(tables.values())).files.each(look, tables)
    return found


def as_rows(found: pa.Table, columns: Sequence[str]) -> list[Row]:
    """Return an Arrow table's rows as mappings. Missing columns are filled with None."""
    values = {
        name: _values(found.column(name)) if name in found.column_names else [None] * found.num_rows
        for name in columns
    }
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def all_rows(snapshot: Snapshot, columns: Sequence[str], where: Sequence[ds.Expression]) -> list[Row]:
    """Return the given columns of all rows that match every condition."""
    return [row for part in snapshot.rows(columns, everything(where)) for row in as_rows(part, columns)]


def equals(column: str, value: Any) -> ds.Expression:
    """Return a filter for rows in which a column equals this value."""
    return cast("ds.Expression", ds.field(column) == value)


def since(column: str, micros: int) -> ds.Expression:
    """Return a filter for rows in which a column's time is `micros` or later."""
    return cast("ds.Expression", ds.field(column) >= pa.scalar(micros, _MICROS))


def before(column: str, micros: int) -> ds.Expression:
    """Return a filter for rows in which a column's time is earlier than `micros`."""
    return cast("ds.Expression", ds.field(column) < pa.scalar(micros, _MICROS))


def everything(conditions: Sequence[ds.Expression]) -> ds.Expression | None:
    """Combine filters with AND. Return None if there are no filters."""
    both: ds.Expression | None = None
    for one in conditions:
        both = one if both is None else both & one
    return both


def _row(file: pq.ParquetFile, group: int, at: int, columns: Sequence[str]) -> Row:
    names = [name for name in columns if name in file.schema_arrow.names]
    for rows in file.iter_batches(_ROWS, row_groups=[group], columns=names, use_threads=False):
        if at < rows.num_rows:
            return as_rows(pa.Table.from_batches([rows.slice(at, 1)]), columns)[0]
        at -= rows.num_rows
    raise TableAwayError(f"the expected row is {at:,} rows past the end of its row group")


def _fitting(rows: pa.Table, indices: pa.Array) -> int:
    """Return how many of these rows fit into one page. The result is at least 1."""
    if rows.nbytes <= MOST_BYTES:
        return len(indices)
    left, number = MOST_BYTES, 0
    while number < len(indices) and (left := left - rows.slice(indices[number].as_py(), 1).nbytes) >= 0:
        number += 1
    return max(1, number)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, with all times, including those in structs, as epoch microseconds."""
    for times in (_MICROS, pa.int64()):
        column = column.cast(_with_times(column.type, times))
    return cast("list[Any]", column.to_pylist())


def _with_times(type_: pa.DataType, times: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_with_times(field.type, times)) for field in type_.fields])
    return times if pa.types.is_timestamp(type_) else type_
