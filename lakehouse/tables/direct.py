"""Tables that deltalake makes, appends to and reads: without Spark and its JVM, from any process.

Only for tables that no micro-batch writes: what Spark's part of this package knows of transactions and leases
is not known here. Several processes may append at once; deltalake puts each commit's file where there is none
and tries again with the next number.

Rows are read by deltalake's own query engine. `DeltaTable.to_pyarrow_table` is not used: its threads may
outlive the reading, and then abort the process at its end (exit code 134).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakehouse.tables.making import properties_when_made
from lakehouse.tables.specs import TableSpec, path_of

if TYPE_CHECKING:
    from deltalake import Schema

_AS_S3 = ("s3a://", "s3n://")
_FEW_FILES = 20


def location(lake: str, spec: TableSpec) -> str:
    """Return where a table lies, as deltalake names it: a path of this machine, or a URL.

    Spark's names of S3 become the usual one. Keys and endpoints are read from the environment (AWS_…), not
    from Spark's properties.
    """
    path = path_of(lake, spec.layer, spec.name)
    if path.startswith("file:"):
        return f"/{path.removeprefix('file:').lstrip('/')}"
    return f"s3://{path[len(_AS_S3[0]) :]}" if path.startswith(_AS_S3) else path


def append(lake: str, spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows in one commit, to a table that is made as `ensure` makes one where it is not there yet.

    A column that the table lacks is added, and one that the spec lacks is null. Raises what deltalake raises.
    """
    import pyarrow as pa  # noqa: PLC0415 - takes half a second, which is not for a process's start
    from deltalake import write_deltalake  # noqa: PLC0415

    schema = _schema(spec)
    path = _ensure(lake, spec, schema)
    table = pa.Table.from_pylist(list(rows), schema=pa.schema(schema))
    write_deltalake(path, table, mode="append", schema_mode="merge")


def read(lake: str, spec: TableSpec, query: str) -> list[dict[str, Any]]:
    """Return the rows of a query, in the SQL of DataFusion, in which the table is called `rows`.

    None where there is no table. Timestamps are UTC.
    """
    import pyarrow as pa  # noqa: PLC0415
    from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415

    path = location(lake, spec)
    if not DeltaTable.is_deltatable(path):
        return []
    found = QueryBuilder().register("rows", DeltaTable(path)).execute(query).read_all()
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def compact(lake: str, spec: TableSpec) -> tuple[int, int]:
    """Make few files of many small ones, and return how many became how many; a rerun finds nothing to do.

    Appends go on meanwhile. Files that were replaced more than a week ago are removed.
    """
    from deltalake import DeltaTable  # noqa: PLC0415

    path = location(lake, spec)
    if not DeltaTable.is_deltatable(path):
        return 0, 0
    table = DeltaTable(path)
    before = len(table.file_uris())
    if before <= _FEW_FILES:
        return before, before
    table.optimize.compact()
    table.vacuum(dry_run=False)
    return before, len(table.file_uris())


def _ensure(lake: str, spec: TableSpec, schema: Schema) -> str:
    from deltalake import DeltaTable  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    path = location(lake, spec)
    if not DeltaTable.is_deltatable(path):
        try:
            DeltaTable.create(path, schema, configuration=properties_when_made(spec))
        except DeltaError:
            if not DeltaTable.is_deltatable(path):  # nobody else has made it at this moment
                raise
    return path


def _schema(spec: TableSpec) -> Schema:
    from deltalake import Schema  # noqa: PLC0415

    return Schema.from_json(spec.schema.json())
