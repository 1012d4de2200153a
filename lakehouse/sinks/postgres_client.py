"""Connections to PostgreSQL, by a URL as libpq knows it, and their errors as one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lakehouse.errors import SinkTroubleError
from lakehouse.sinks import postgres_sql as statements
from lakehouse.sinks.postgres_sql import Sql, quoted

_DEFAULTS = {"connect_timeout": "5", "tcp_user_timeout": "20000", "application_name": "lakehouse"}
_SESSION = "SET lock_timeout = '10s'; SET timezone = 'UTC'; SET datestyle = 'ISO'"
_NAME = "LAKEHOUSE_POSTGRES_URL"


class PostgresTroubleError(SinkTroubleError):
    """PostgreSQL is out of reach, or full, or refuses what it is asked."""


def connect(url: str) -> psycopg.Connection:
    """Return a connection whose statements are in transactions; use it within `reported`."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # it may quote a part of a password
        raise PostgresTroubleError(
            f"{_NAME} has an option that libpq does not know, or one without a value"
        ) from None
    with reported():
        connection = psycopg.connect(**{**_DEFAULTS, **given})  # type: ignore[arg-type]
        connection.execute(_SESSION)
        connection.commit()
    return connection


def require_postgres(url: str) -> None:
    """Raise PostgresTroubleError unless the URL leads to a PostgreSQL in which tables can be made."""
    with connect(url) as connection, reported():
        prepare_schema(connection)
        connection.execute("CREATE TEMPORARY TABLE lakehouse_probe () ON COMMIT DROP")
        connection.rollback()


def prepare_schema(connection: psycopg.Connection) -> None:
    """Make the schema and the table of positions, where they are missing."""
    with reported():
        found = connection.execute("SELECT to_regnamespace(%s)", [statements.SCHEMA]).fetchone()
        if found is None or found[0] is None:  # IF NOT EXISTS asks for the right even so
            connection.execute(statements.CREATE_SCHEMA)
        connection.execute(statements.CREATE_POSITIONS)


def prepare_table(connection: psycopg.Connection, table: Sql) -> None:
    """Make a table as its declaration says, or add the columns that it lacks; then it is filled anew.

    Raises PostgresTroubleError if a column has another type.
    """
    prepare_schema(connection)
    with reported():
        there: dict[str, str] = dict(
            connection.execute(statements.COLUMNS, [quoted(statements.SCHEMA, table.name)]).fetchall()
        )
        if not there:
            for statement in (table.create(), *table.comments()):
                connection.execute(statement)
        for name, kind in table.stamped.items():
            if there and there.get(name, kind) != kind:
                raise PostgresTroubleError(
                    f"PostgreSQL has {there[name]} for column {name} of gold.{table.name}, the export "
                    f"{kind}. DROP TABLE gold.{table.name}: the export makes it again and fills it"
                )
        missing = [name for name in table.columns if there and name not in there]
        for name in missing:
            connection.execute(table.add(name))
        if missing:
            connection.execute(statements.FORGET, [table.name])
        connection.execute(table.receive())
        connection.commit()


@contextmanager
def reported() -> Iterator[None]:
    """Translate failures into PostgresTroubleError, one line each; a row's values are in none."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise PostgresTroubleError(
            f"PostgreSQL denies the user of {_NAME} a right: {_what(error)} (docs/postgresql.md)"
        ) from None
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise PostgresTroubleError(
            f"PostgreSQL is a standby, and {_NAME} has to name the primary, also after a failover: "
            f"{_what(error)}"
        ) from None
    except psycopg.OperationalError as error:
        if error.sqlstate is not None and not error.sqlstate.startswith(("08", "57")):
            raise PostgresTroubleError(f"PostgreSQL does not take the rows: {_what(error)}") from None
        raise PostgresTroubleError(f"PostgreSQL is out of reach: {_what(error)}; is {_NAME} right?") from None
    except psycopg.Error as error:
        raise PostgresTroubleError(
            f"PostgreSQL has refused a statement of the export: {_what(error)}"
        ) from None


def _what(error: psycopg.Error) -> str:
    said = error.diag.message_primary or str(error)
    return " ".join(said.split())
