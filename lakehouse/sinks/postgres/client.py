"""Connections to PostgreSQL, by a URL in libpq's format."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lakehouse.sinks.postgres.errors import URL, PostgresTroubleError, reported

_DEFAULTS = {"connect_timeout": "5", "tcp_user_timeout": "20000", "application_name": "lakehouse"}
_OURS = {"client_encoding": "UTF8"}  # whatever the database's is: else psycopg uses that one
_SESSION = "SET lock_timeout = '10s'; SET timezone = 'UTC'; SET datestyle = 'ISO'"
_IS_READ_ONLY = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean"
_WHOLE, _UNKNOWN = "UTF8", "SQL_ASCII"


def connect(url: str, *, within_s: int | None = None) -> psycopg.Connection:
    """Return a connection to a server that takes rows; its statements run in transactions.

    With `within_s`, no statement waits longer than that for a lock, or takes more than twice that time.
    Raises PostgresTroubleError; use the connection within `reported`.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # it may quote a part of a password
        raise PostgresTroubleError(
            f"{URL} has an option that libpq does not know, or one without a value"
        ) from None
    with reported():
        connection = psycopg.connect(**{**_DEFAULTS, **given, **_OURS})  # type: ignore[arg-type]
        try:
            _begin(connection, within_s)
        except BaseException:
            connection.close()
            raise
    return connection


def encoding_of(connection: psycopg.Connection) -> str:
    """Return the database's encoding, as PostgreSQL calls it."""
    return connection.info.parameter_status("server_encoding") or _WHOLE


def takes_any_text(encoding: str) -> bool:
    """Tell whether a database with this encoding takes every character, like UTF-8."""
    return encoding in {_WHOLE, _UNKNOWN}


def doubts_of_postgres(url: str) -> list[str]:
    """Return warnings about the rows in a PostgreSQL that works, one line each."""
    try:
        with connect(url) as connection:
            return list(_doubts(encoding_of(connection)))
    except PostgresTroubleError:  # it has just become unreachable, which the export reports
        return []


def _doubts(encoding: str) -> Iterator[str]:
    advice = "Create it with ENCODING 'UTF8' TEMPLATE template0 (docs/postgresql.md)"
    if encoding == _UNKNOWN:
        yield (
            "PostgreSQL: the database has the encoding SQL_ASCII, so it does not know that its text is "
            f"UTF-8: length() counts bytes, and readers have to set client_encoding to UTF8. {advice}"
        )
    elif not takes_any_text(encoding):
        yield (
            f"PostgreSQL: the database has the encoding {encoding}. Rows with a character that it lacks are "
            f"not sent there; ops.unsent_rows has them. {advice}"
        )


def _begin(connection: psycopg.Connection, within_s: int | None) -> None:
    connection.execute(_SESSION)
    if within_s is not None:
        connection.execute(f"SET lock_timeout = '{within_s}s'; SET statement_timeout = '{2 * within_s}s'")
    found = connection.execute(_IS_READ_ONLY).fetchone()
    connection.commit()
    is_standby, is_read_only = found or (False, False)
    if is_standby:
        raise PostgresTroubleError(
            f"PostgreSQL is a standby, so rows wait, and {URL} has to name the primary, also after a failover"
        )
    if is_read_only:
        raise PostgresTroubleError(
            "PostgreSQL is read-only, so rows wait: default_transaction_read_only is on for the server, the "
            f"database or the user of {URL}"
        )
