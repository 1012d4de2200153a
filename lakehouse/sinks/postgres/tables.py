"""Creates a gold table in PostgreSQL, adopts an existing one, or refuses it and says how to fix it."""

from __future__ import annotations

import psycopg

from lakehouse.sinks.postgres import statements
from lakehouse.sinks.postgres.client import (
    URL,
    PostgresTroubleError,
    connect,
    encoding_of,
    reported,
    takes_any_text,
)
from lakehouse.sinks.postgres.layout import POSITIONS, SCHEMA, STAMPS
from lakehouse.sinks.postgres.statements import Sql, quoted

_TABLES = {"r", "p"}
_OTHERS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "i": "an index",
    "I": "an index",
    "S": "a sequence",
    "c": "a type",
}
_TRIED_WITHIN_S = 5
_NEWEST = 2**63 - 1  # of generations


def require_postgres(url: str) -> None:
    """Raise PostgresTroubleError unless tables can be created in the PostgreSQL at the URL."""
    with connect(url) as connection, reported():
        prepare_schema(connection)
        connection.execute("CREATE TEMPORARY TABLE lakehouse_probe () ON COMMIT DROP")
        connection.rollback()


def prepare_schema(connection: psycopg.Connection) -> None:
    """Create the schema and the table of positions if they are missing."""
    with reported():
        found = connection.execute("SELECT to_regnamespace(%s)", [SCHEMA]).fetchone()
        if found is None or found[0] is None:  # IF NOT EXISTS needs the right even if it exists
            connection.execute(statements.CREATE_SCHEMA)
        if connection.execute(statements.KIND, [quoted(SCHEMA, POSITIONS)]).fetchone() is None:
            connection.execute(statements.CREATE_POSITIONS)
        _require_rights(connection, POSITIONS)


def prepare_table(connection: psycopg.Connection, table: Sql) -> None:
    """Create a table as declared, or add missing columns to it, after which it is filled again.

    Nothing is committed. Raises PostgresTroubleError if the existing table cannot take the rows.
    """
    prepare_schema(connection)
    with reported(table.name):
        kind = connection.execute(statements.KIND, [quoted(SCHEMA, table.name)]).fetchone()
        if kind is None:
            connection.execute(table.create())
            for comment in table.comments(is_ascii=not takes_any_text(encoding_of(connection))):
                connection.execute(comment)
        else:
            _adopt(connection, table, kind[0])
        connection.execute(table.receive())


def try_row(url: str, table: Sql) -> None:
    """Try to delete, insert and update a row of a table, in a transaction that is rolled back.

    It is one of the existing rows, or a made-up one. Raises PostgresTroubleError if a statement fails, or has
    to wait.
    """
    with connect(url, within_s=_TRIED_WITHIN_S) as connection:
        prepare_table(connection, table)
        with reported(table.name):
            if connection.execute(table.receive_one()).rowcount == 0:
                connection.execute(table.make_up_one())
            for statement in (table.delete, table.upsert, table.upsert):
                connection.execute(table.age(is_gone=statement == table.delete))
                connection.execute(statement(_NEWEST))
            connection.execute(statements.NOTE, ["", "", 0, 0, None, False])
            connection.rollback()


def _adopt(connection: psycopg.Connection, table: Sql, kind: str) -> None:
    """Add the columns that a table lacks; raise PostgresTroubleError if it cannot take the rows."""
    place, name = f"gold.{table.name}", quoted(SCHEMA, table.name)
    if kind not in _TABLES:
        raise PostgresTroubleError(
            f"PostgreSQL has {_OTHERS.get(kind, 'something else')} called {place}, and the export needs a "
            "table of its own there. Rename it or drop it: the export makes the table and fills it"
        )
    _require_rights(connection, table.name)
    there = {
        one: (type_, is_needed) for one, type_, is_needed in connection.execute(statements.COLUMNS, [name])
    }
    again = f"DROP TABLE {place}: the export makes it again and fills it"
    for column, type_ in table.stamped.items():
        if column in there and there[column][0] != type_:
            raise PostgresTroubleError(
                f"PostgreSQL has {there[column][0]} for column {column} of {place}, the export {type_}. "
                f"{again}"
            )
    if lacking := [column for column in STAMPS if column not in there]:
        raise PostgresTroubleError(
            f"PostgreSQL has a table {place} that the export has not made: it lacks {', '.join(lacking)}. "
            f"Rename it, or {again}"
        )
    for column, (_, is_needed) in there.items():
        if is_needed and column not in table.stamped:
            raise PostgresTroubleError(
                f"PostgreSQL has a column {column} in {place} that is NOT NULL without a default, and the "
                f"export has no values for it. ALTER TABLE {place} ALTER COLUMN {quoted(column)} DROP NOT "
                "NULL, and the rows are sent"
            )
    _require_key(connection, table, again)
    missing = [column for column in table.columns if column not in there]
    for column in missing:
        connection.execute(table.add(column))
    if missing:
        connection.execute(statements.FORGET, [table.name])


def _require_key(connection: psycopg.Connection, table: Sql, again: str) -> None:
    wanted = table.declared.keys
    keys = [key for (key,) in connection.execute(statements.UNIQUE_KEYS, [quoted(SCHEMA, table.name)])]
    if not any(set(key) == set(wanted) for key in keys):
        there = f"the key ({', '.join(keys[0])})" if keys else "no key"
        columns = ", ".join(quoted(name) for name in wanted)
        raise PostgresTroubleError(
            f"PostgreSQL has gold.{table.name} with {there}, and the export needs ({', '.join(wanted)}). "
            f"ALTER TABLE gold.{table.name} ADD PRIMARY KEY ({columns}), or {again}"
        )


def _require_rights(connection: psycopg.Connection, name: str) -> None:
    lacking = [right for (right,) in connection.execute(statements.LACKING_RIGHTS, [quoted(SCHEMA, name)])]
    if lacking:
        rights = ", ".join(lacking)
        raise PostgresTroubleError(
            f"PostgreSQL denies the user of {URL} {rights} on gold.{name}: GRANT {rights} ON gold.{name} TO "
            f"{quoted(connection.info.user)}"
        )
