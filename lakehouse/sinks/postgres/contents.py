"""Everything that PostgreSQL contains in the export's schema, and the values that its statistics keep."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg import sql

from lakehouse.sinks.port import Stored
from lakehouse.sinks.postgres.client import connect, reported
from lakehouse.sinks.postgres.layout import SCHEMA, STAMPS

_ROWS = 5_000
_TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'm', 'f') ORDER BY 1
"""
_COLUMNS = """
SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_STATISTICS = """
SELECT tablename, attname, concat_ws(E'\\n', most_common_vals::text, histogram_bounds::text)
FROM pg_stats WHERE schemaname = %s
"""
STATISTICS = "statistics, until the next ANALYZE"
"""The kind of the values that PostgreSQL's planner keeps of a column, also of deleted rows."""


def contents(url: str) -> Iterator[Stored]:
    """Yield every column of every table in the export's schema, as text, in one snapshot.

    The columns and tables in which the export keeps its position are included, except for versions. Rows that
    are deleted stay on disk until PostgreSQL's VACUUM, where no query finds them. Raises ServiceError if
    PostgreSQL is unreachable, denies a permission, or hides rows from the user by a policy.
    """
    with connect(url) as connection, reported():
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        connection.execute("SET row_security = off")  # a policy that hides rows is then an error
        for (name,) in connection.execute(_TABLES, [SCHEMA]).fetchall():
            yield from _of_table(connection, name)
        for name, column, values in connection.execute(_STATISTICS, [SCHEMA]).fetchall():
            if values and column not in STAMPS:
                yield Stored(f"{SCHEMA}.{name}", STATISTICS, column, [values.encode()])


def _of_table(connection: psycopg.Connection, name: str) -> Iterator[Stored]:
    table = sql.Identifier(SCHEMA, name)
    found = connection.execute(_COLUMNS, [table.as_string(connection)]).fetchall()
    columns = {column: kind for column, kind in found if column not in STAMPS}
    if not columns:
        return
    texts = sql.SQL(", ").join(
        sql.Identifier(column) if kind == "bytea" else sql.SQL("{}::text").format(sql.Identifier(column))
        for column, kind in columns.items()
    )
    with connection.cursor(name="lakehouse_contents") as cursor:
        cursor.itersize = _ROWS
        cursor.execute(sql.SQL("SELECT {} FROM {}").format(texts, table))
        while rows := cursor.fetchmany(_ROWS):
            for column, values in zip(columns, zip(*rows, strict=True), strict=True):
                yield Stored(
                    f"{SCHEMA}.{name}", "table", column, [_bytes(one) for one in values if one is not None]
                )


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
