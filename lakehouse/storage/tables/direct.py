"""Use deltalake to create, append to and read tables in any process, without Spark or its JVM.

Use this only for tables that no micro-batch writes to, because it supports neither transactions nor leases.
Several processes can append concurrently: deltalake creates a commit's file only if that file does not exist
yet, and otherwise tries the next version.

pyarrow writes and reads the files in the calling thread. `write_deltalake` and `QueryBuilder` would panic if
a directory's name contained a bracket. `DeltaTable.to_pyarrow_table` would leave threads behind, which could
abort the process at exit.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.common import paths
from lakehouse.common.errors import TableError, first_line
from lakehouse.storage.files import arrow_directory
from lakehouse.storage.tables import lasting
from lakehouse.storage.tables.inside import refuse_paths
from lakehouse.storage.tables.making import properties_when_made
from lakehouse.storage.tables.specs import TableSpec, path_of

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable, Field, Schema

_FEW_FILES = 20
_TRIES = 5
_MILLISECOND = timedelta(milliseconds=1)


def location(lake: str, spec: TableSpec) -> str:
    """Return a table's location in the form that deltalake expects: a local path or a URL."""
    return paths.location(path_of(lake, spec.layer, spec.name))


def append(lake: str, spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows in one commit. A missing table is created as `Lake.ensure` would create it.

    Columns that only the spec contains are added to the table. Columns that only the table contains are null
    in the new rows. If another process changes the table's columns in the meantime, the commit is retried
    with the same data file. Raises deltalake's errors, and TableError if a power failure has damaged the
    table.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction

    schema = _schema(spec)
    path, data = location(lake, spec), pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(schema)), data)
    file, stats = data.getvalue(), json.dumps(_stats(rows, spec))
    name, now_ms = f"part-{uuid.uuid4()}.snappy.parquet", int(time.time() * 1000)
    added = AddAction(name, file.size, {}, now_ms, True, stats)
    here = Path(path) if paths.is_local(path) else None
    if here is not None:
        lasting.look(here, spec.qualified_name)
    for tries_left in reversed(range(_TRIES)):
        try:
            table = _ensure(path, spec, schema)
            system, root = arrow_directory(path)
            with system.open_output_stream(f"{root}/{name}") as stream:
                stream.write(file)
            table.create_write_transaction([added], "append", table.schema(), [])
        except CommitFailedError:
            if not tries_left:
                raise
        else:
            if here is not None:
                table.update_incremental()
                lasting.keep(here, table.version())
            return


def newest_first(
    lake: str, spec: TableSpec, column: str
) -> Iterator[tuple[datetime | None, Callable[[], list[dict[str, Any]]]]]:
    """Yield each file's latest time in `column`, and a function that reads the file's rows; latest first.

    Yields nothing if there is no table. Files without this time in their statistics come first, with None.
    Timestamps are UTC. A column that is missing from a file is null. Both this function and the yielded
    functions raise TableError if the table cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    path, schema = location(lake, spec), pa.schema(_schema(spec))

    @contextmanager
    def reading() -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise _unreadable(lake, spec, error) from error

    def rows(name: str) -> list[dict[str, Any]]:
        with reading(), system.open_input_file(f"{root}/{name}") as source:
            found = pq.ParquetFile(source, pre_buffer=False).read(use_threads=False)
        return [_missing(schema.names) | row for row in _as(schema, found).to_pylist()]

    with reading():
        if not DeltaTable.is_deltatable(path):
            return
        table = _opened(path)
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        system, root = arrow_directory(path)
    reach = {file["path"]: file.get(f"max.{column}") for file in files}
    for name in sorted(reach, key=lambda name: _reversed(reach[name])):
        upto = None if reach[name] is None else reach[name] + _MILLISECOND  # statistics may be truncated
        yield upto, partial(rows, name)


def rows_where(
    lake: str, spec: TableSpec, columns: Sequence[str], where: ds.Expression
) -> list[dict[str, Any]]:
    """Return some columns of the rows that match a condition, or an empty list if there is no table.

    Files that the statistics rule out are not read. Timestamps are UTC. Raises TableError if the table cannot
    be read.
    """
    table = dataset(lake, spec)
    if table is None:
        return []
    try:
        found: list[dict[str, Any]] = table.to_table(columns=list(columns), filter=where).to_pylist()
    except OSError as error:
        raise _unreadable(lake, spec, error) from error
    return found


def refuse_files_outside(table: DeltaTable, path: str) -> None:
    """Raise TableError if an opened table refers to files outside its path, which a reader would open."""
    import pyarrow as pa

    refuse_paths(path, table.version(), pa.table(table.get_add_actions())["path"].to_pylist())


def exists(lake: str, spec: TableSpec) -> bool:
    """Return whether the table exists."""
    from deltalake import DeltaTable

    return DeltaTable.is_deltatable(location(lake, spec))


def noted_format(lake: str, spec: TableSpec) -> int | None:
    """Return the version of a table's format (0 if none is recorded), or None if there is no table.

    Raises TableError if the table cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    from lakehouse.storage.tables.making import FORMAT_PROPERTY

    try:
        if not exists(lake, spec):
            return None
        table = DeltaTable(location(lake, spec))
        noted = table.metadata().configuration.get(FORMAT_PROPERTY, "0")
    except (DeltaError, OSError) as error:
        raise _unreadable(lake, spec, error) from error
    return int(noted) if noted.isdecimal() else sys.maxsize


def dataset(lake: str, spec: TableSpec) -> ds.Dataset | None:
    """Return a table's current rows, or None if there is no table. Raises TableError if it is unreadable."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError
    from pyarrow.fs import SubTreeFileSystem

    path = location(lake, spec)
    try:
        if not DeltaTable.is_deltatable(path):
            return None
        system, root = arrow_directory(path)
        return _opened(path).to_pyarrow_dataset(filesystem=SubTreeFileSystem(root, system))
    except (DeltaError, OSError) as error:
        raise _unreadable(lake, spec, error) from error


def _opened(path: str) -> DeltaTable:
    from deltalake import DeltaTable

    table = DeltaTable(path)
    refuse_files_outside(table, path)
    return table


def _unreadable(lake: str, spec: TableSpec, error: Exception) -> TableError:
    return TableError(
        f"{spec.qualified_name} at {location(lake, spec)} could not be read: {first_line(error)}"
    )


def compact(lake: str, spec: TableSpec) -> tuple[int, int]:
    """Merge small files, and return the table's number of files before and after. A rerun does nothing.

    A table with few files is left unchanged. Other processes can append in the meantime. Files that were
    replaced more than a week ago are removed.
    """
    from deltalake import DeltaTable

    path = location(lake, spec)
    if not DeltaTable.is_deltatable(path):
        return 0, 0
    table = _opened(path)
    before = len(table.file_uris())
    if before <= _FEW_FILES:
        return before, before
    table.optimize.compact()
    table.vacuum(dry_run=False)
    return before, len(table.file_uris())


def _ensure(path: str, spec: TableSpec, schema: Schema) -> DeltaTable:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.exceptions import DeltaError

    if not DeltaTable.is_deltatable(path):
        try:
            DeltaTable.create(
                path,
                schema,
                description=spec.comment or None,
                configuration=properties_when_made(spec),
                commit_properties=CommitProperties(max_commit_retries=0),  # a retry would create version 1
                raise_if_key_not_exists=False,  # for properties that are not Delta's
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(path):  # no other process has created the table either
                raise
    table = DeltaTable(path)
    if missing := _lacking(table, schema):
        table.alter.add_columns(missing)
    return table


def _lacking(table: DeltaTable, schema: Schema) -> list[Field]:
    there = {field.name for field in table.schema().fields}
    return [field for field in schema.fields if field.name not in there]


def _schema(spec: TableSpec) -> Schema:
    from deltalake import Schema

    return Schema.from_json(spec.schema.json())


def _stats(rows: Sequence[Mapping[str, Any]], spec: TableSpec) -> dict[str, Any]:
    """Return a file's statistics for Delta's log: the earliest and latest time in each `stats` column."""
    values = {name: [row[name] for row in rows] for name in spec.stats}
    return {
        "numRecords": len(rows),
        "minValues": {name: _in_ms(min(found)) for name, found in values.items()},
        "maxValues": {name: _in_ms(max(found)) for name, found in values.items()},
        "nullCount": dict.fromkeys(values, 0),
    }


def _in_ms(moment: datetime) -> str:
    """Return a time in the format of Delta's statistics, truncated to milliseconds as readers expect."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _reversed(moment: datetime | None) -> float:
    return float("-inf") if moment is None else -moment.timestamp()


def _missing(names: Sequence[str]) -> dict[str, Any]:
    return dict.fromkeys(names)


def _as(schema: Any, found: Any) -> Any:
    """Select the schema's columns from the rows and cast them. Spark might have written other types."""
    import pyarrow as pa

    both = [field for field in schema if field.name in found.column_names]
    return pa.table({field.name: found[field.name].cast(field.type) for field in both})
