"""DuckDB's SQL over the lake, for statements that only read: it starts without a JVM, in a tenth of a second.

Tables have the names and types that they have in Spark. Functions, the names of unnamed columns, and the
types of what is computed are DuckDB's: an average of decimals is a double, say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from lakehouse.catalog import specs, tables_here
from lakehouse.errors import QueryError, first_line
from lakehouse.render import QueryResult
from lakehouse.stream import Stream
from lakehouse.tables import direct

_READING = frozenset(("SELECT", "EXPLAIN"))
_LISTING = re.compile(r"\b(show|information_schema|duckdb_\w+)\b", re.IGNORECASE)


def ask(lake: str, streams: Sequence[Stream], statement: str, *, limit: int) -> QueryResult:
    """Run a statement that reads tables of the lake, and return at most `limit` rows.

    Instants are UTC. Nothing but the tables can be read: no file, and no address. Raises QueryError if the
    statement does more than read, or fails, and TableError if a table cannot be read.
    """
    with duckdb.connect(config={"python_enable_replacements": False}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        try:
            _refuse_more_than_reading(connection, statement)
            _register(connection, lake, streams, statement)
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            return _result(connection.sql(statement), limit)
        except (duckdb.Error, pa.ArrowException, OSError, ValueError, OverflowError) as error:
            known = [spec.qualified_name for spec in specs(streams) if direct.exists(lake, spec)]
            raise QueryError(f"DuckDB: {first_line(error)} ({tables_here(known, lake)})") from None


def _refuse_more_than_reading(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    kinds = [one.type.name for one in connection.extract_statements(statement)]
    if len(kinds) != 1:
        raise QueryError(f"this is {len(kinds)} statements; give one")
    if kinds[0] not in _READING:
        raise QueryError(
            f"with DuckDB a statement can only read ({kinds[0]}); Spark changes tables, by --write"
        )


def _register(
    connection: duckdb.DuckDBPyConnection, lake: str, streams: Sequence[Stream], statement: str
) -> None:
    """Make the tables known by name that the statement names, or all if it lists."""
    lists = _LISTING.search(statement) is not None
    for spec in specs(streams):
        if lists or spec.name in statement.lower():
            dataset = direct.dataset(lake, spec)
            if dataset is not None:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {spec.layer}")
                connection.execute(f"SET schema = '{spec.layer}'")
                connection.from_arrow(dataset).create_view(spec.name)
    connection.execute("SET schema = 'main'")


def _result(found: duckdb.DuckDBPyRelation, limit: int) -> QueryResult:
    rows = found.limit(limit + 1).to_arrow_table()
    for place, (field, kind) in enumerate(zip(rows.schema, found.types, strict=True)):
        if kind == "HUGEINT":  # the sum of longs, which is a long for Spark
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(place, field.name, rows.column(place).cast(pa.int64()))
    schema = from_arrow_schema(rows.schema)
    columns = [
        [_value(value, field.dataType) for value in column.to_pylist()]
        for column, field in zip(rows.columns, schema.fields, strict=True)
    ]
    shown = [Row(*values) for values in zip(*columns, strict=True)]
    return QueryResult(schema, shown[:limit], truncated=len(shown) > limit)


def _value(value: Any, type_: DataType) -> Any:
    """Return a value of Arrow as Spark's rows have it."""
    if value is None:
        return None
    if isinstance(type_, StructType):
        return Row(*(_value(value[field.name], field.dataType) for field in type_.fields))
    if isinstance(type_, MapType):
        return {_value(k, type_.keyType): _value(v, type_.valueType) for k, v in value}
    if isinstance(type_, ArrayType):
        return [_value(one, type_.elementType) for one in value]
    return value
