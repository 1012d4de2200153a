"""Run read-only DuckDB SQL on the lake. DuckDB starts in a tenth of a second, without a JVM.

Tables have the same names and types as in Spark. Functions, default column names and the types of computed
columns are DuckDB's. For example, the average of decimals is a double. Integers of any size are returned as
numbers, and intervals as ISO 8601 durations, such as P1M or PT90S.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from lakehouse.common.errors import QueryError, first_line
from lakehouse.common.nearest import did_you_mean, nearest, shown
from lakehouse.common.rows_as_text import QueryResult, iso_duration
from lakehouse.operations.catalog.spark_sql import specs, tables_here
from lakehouse.storage.tables import direct
from lakehouse.streams.definition import Stream

_READING = frozenset(("SELECT", "EXPLAIN"))
_NESTED = frozenset(("list", "array", "map", "struct"))
_HUGE = frozenset(("hugeint", "uhugeint"))
_TYPES: dict[str, DataType] = {
    "utinyint": ShortType(),
    "usmallint": IntegerType(),
    "uinteger": LongType(),
    "ubigint": DecimalType(20, 0),
    "hugeint": DecimalType(38, 0),
    "uhugeint": DecimalType(38, 0),
    "interval": StringType(),
    "enum": StringType(),
    "union": StringType(),
}
"""DuckDB types that Spark lacks, or that Arrow does not convert, with the Spark types to use instead."""
_LISTING = re.compile(r"\b(show|information_schema|duckdb_\w+)\b", re.IGNORECASE)


def ask(lake: str, streams: Sequence[Stream], statement: str, *, limit: int) -> QueryResult:
    """Run a read-only statement on the lake's tables, and return at most `limit` rows.

    Timestamps are in UTC. Only the lake's tables can be read, not other files or addresses. Raises QueryError
    if the statement fails or does more than read, and TableError if a table cannot be read.
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
            what = _missing_table(error, statement, known) or first_line(error)
            raise QueryError(f"DuckDB: {what} ({tables_here(known, lake)})") from None


def _refuse_more_than_reading(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    kinds = [one.type.name for one in connection.extract_statements(statement)]
    if len(kinds) != 1:
        raise QueryError(f"expected one statement, not {len(kinds)}")
    if kinds[0] not in _READING:
        raise QueryError(
            f"DuckDB is read-only here and refuses {kinds[0]}; to change tables, use Spark with --write"
        )


def _register(
    connection: duckdb.DuckDBPyConnection, lake: str, streams: Sequence[Stream], statement: str
) -> None:
    """Create views of the tables that the statement names, or of all tables if the statement lists tables."""
    lists = _LISTING.search(statement) is not None
    for spec in specs(streams):
        if lists or spec.name in statement.lower():
            dataset = direct.dataset(lake, spec)
            if dataset is not None:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {spec.layer}")
                connection.execute(f"SET schema = '{spec.layer}'")
                connection.from_arrow(dataset).create_view(spec.name)
    connection.execute("SET schema = 'main'")


def _missing_table(error: Exception, statement: str, known: Sequence[str]) -> str | None:
    """Return a message with suggestions if a table is missing, or None for any other error.

    If the statement names no existing table in a schema, DuckDB reports the whole schema as missing.
    """
    found = re.search(r'Table with name "?([^"!]+?)"? does not exist', str(error))
    if not isinstance(error, duckdb.CatalogException) or found is None:
        return None
    name = found[1]
    if "." not in name:  # take the schema from the statement, if given
        given = re.search(rf'(\w+)"?\s*\.\s*"?{re.escape(name)}\b', statement, re.IGNORECASE)
        name = name if given is None else f"{given[1]}.{name}"
    near = nearest(name, known)
    return f"there is no table {shown(name)}" + (f", {did_you_mean(near)}" if near else "")


def _result(found: duckdb.DuckDBPyRelation, limit: int) -> QueryResult:
    rows, schema, columns = found.limit(limit + 1).to_arrow_table(), StructType(), list[list[Any]]()
    for column, field, kind in zip(rows.columns, rows.schema, found.types, strict=True):
        values = [_value(value, kind) for value in column.to_pylist()]
        type_ = _type(kind, field.type)
        if kind.id in _HUGE and all(value is None or -(2**63) <= value < 2**63 for value in values):
            type_ = LongType()  # for example, a sum of longs, which is a long in Spark
        schema = schema.add(field.name, type_)
        columns.append(values)
    shown_rows = [Row(*values) for values in zip(*columns, strict=True)]
    return QueryResult(schema, shown_rows[:limit], truncated=len(shown_rows) > limit)


def _type(kind: DuckDBPyType, arrow: pa.DataType) -> DataType:
    """Return the smallest Spark type that can represent every value of a DuckDB type."""
    if kind.id in _TYPES:
        return _TYPES[kind.id]
    if kind.id in ("list", "array"):
        return ArrayType(_type(_inner(kind)[0], arrow.value_type))
    if kind.id == "map":
        key, item = _inner(kind)
        return MapType(_type(key, arrow.key_type), _type(item, arrow.item_type))
    if kind.id == "struct":
        fields = zip(arrow, _inner(kind), strict=True)
        return StructType([StructField(one.name, _type(inner, one.type)) for one, inner in fields])
    return from_arrow_schema(pa.schema([pa.field("one", arrow)])).fields[0].dataType


def _inner(kind: DuckDBPyType) -> list[DuckDBPyType]:
    """Return the types of the elements, keys and values, or fields in a nested type."""
    return [inner for _, inner in kind.children if isinstance(inner, DuckDBPyType)]


def _value(value: Any, kind: DuckDBPyType) -> Any:
    """Convert an Arrow value to the form that Spark uses in rows."""
    if value is None:
        return None
    if kind.id in _HUGE:  # Arrow's 128-bit integers are signed
        return int(value) + (2**128 if kind.id == "uhugeint" and value < 0 else 0)
    if kind.id == "interval":
        return iso_duration(value.months, value.days, value.nanoseconds)
    return _nested(value, kind) if kind.id in _NESTED else value


def _nested(value: Any, kind: DuckDBPyType) -> Any:
    first, *others = inner = _inner(kind)
    if kind.id == "struct":
        return Row(*(_value(one, type_) for one, type_ in zip(value.values(), inner, strict=True)))
    if kind.id == "map":
        return {_value(k, first): _value(v, *others) for k, v in value}
    return [_value(one, first) for one in value]
