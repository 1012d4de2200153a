"""Connect to PostgreSQL with a URL in libpq's format, and explain errors by their SQLSTATE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lakehouse.common.errors import SinkTroubleError, StoreWord
from lakehouse.common.printable import printable

URL = "postgres.url"
_MOST_CHARACTERS = 300
_OF_A_ROW = ("22", "54")


class PostgresTroubleError(SinkTroubleError):
    """PostgreSQL is unreachable or full, or refuses a statement."""

    word = StoreWord.REFUSED


class _Meaning(NamedTuple):
    """What PostgreSQL does, the remedy, and its state. PostgreSQL's own message is between the phrases."""

    does: str
    todo: str
    word: StoreWord = StoreWord.REFUSED


_AWAY = _Meaning("is unreachable", f"is {URL} right?", StoreWord.AWAY)
_DENIED = _Meaning("has refused the connection", f"is {URL} right?")
_FATAL = "FATAL:"  # from the server; libpq's connection errors have no SQLSTATE
_NOT_NOW = ("starting up", "shutting down", "recovery", "terminating", "too many", "connection slots")
_REFUSES = _Meaning("has refused a statement of the export{of}", "docs/postgresql.md lists the requirements")
_MEANINGS = {
    # Server errors: the rows wait, and sending them is retried on a schedule.
    "08": _AWAY,
    "57": _AWAY,
    "57014": _Meaning(
        "has cancelled a statement of the export{of}",
        "it is retried; if no retry succeeds, raise statement_timeout for this user (ALTER ROLE … SET)",
        StoreWord.BEHIND,
    ),
    "57P05": _Meaning(
        "has closed the connection for the export{of} because it was idle",
        "the export reconnects",
        StoreWord.BEHIND,
    ),
    "25P03": _Meaning(
        "has closed the connection for the export{of} because a transaction was idle",
        "it is retried; raise idle_in_transaction_session_timeout for this user (ALTER ROLE … SET)",
        StoreWord.BEHIND,
    ),
    "25P04": _Meaning(
        "has canceled a transaction during the export{of} because it took too long",
        "it is retried; raise transaction_timeout for this user (ALTER ROLE … SET)",
        StoreWord.BEHIND,
    ),
    "55P03": _Meaning(
        "did not grant the export{of} the locks it needs",
        "it is retried; pg_stat_activity and pg_locks show which session holds them",
        StoreWord.BEHIND,
    ),
    "40": _Meaning(
        "has canceled a transaction during the export{of} because of a conflict",
        "it is retried",
        StoreWord.BEHIND,
    ),
    "25006": _Meaning(
        "is read-only, so rows{of} wait",
        f"it is a standby, and {URL} must name the primary, even after a failover; or "
        "default_transaction_read_only is on for the server, the database or this user",
    ),
    "53": _Meaning(
        "has run out of a resource, so rows{of} wait",
        "they are sent once the resource is available",
        StoreWord.FULL,
    ),
    "53100": _Meaning(
        "has no disk space left, so rows{of} wait", "they are sent once there is space", StoreWord.FULL
    ),
    "53300": _Meaning(
        "has reached its connection limit, so rows{of} wait",
        "raise max_connections, or close other connections",
        StoreWord.AWAY,
    ),
    "58": _Meaning(
        "reported an internal error during the export{of}", "see PostgreSQL's log; the export is retried"
    ),
    "XX": _Meaning(
        "reported an internal error during the export{of}", "see PostgreSQL's log; the export is retried"
    ),
    # Missing privileges.
    "28": _Meaning("has refused the user", f"is {URL} right?"),
    "42501": _Meaning(f"denies a permission to the user in {URL}", "see docs/postgresql.md (Access)"),
    # Errors in the PostgreSQL table: the rows wait until someone fixes the table.
    "42P01": _Meaning(
        "is missing a table for the export{of}",
        "the export recreates it; if the error persists, is a connection pooler in transaction mode?",
    ),
    "42": _Meaning(
        "cannot store rows{of} in the existing table",
        "drop the table, and the export recreates and fills it; or see docs/postgresql.md",
    ),
    "0A": _Meaning(
        "cannot store rows{of} in the existing table", "drop the table, and the export recreates and fills it"
    ),
    "23": _Meaning("has a constraint that refuses a row{of}", "drop the constraint; until then, rows wait"),
    "23502": _Meaning(
        "has a column that refuses a row{of}",
        "ALTER TABLE … ALTER COLUMN … DROP NOT NULL; until then, rows wait",
    ),
    "P0": _Meaning("has a trigger that refuses a row{of}", "fix or drop the trigger; until then, rows wait"),
    "54": _Meaning(
        "has an index, or a limit, that refuses a row{of}",
        "drop the index, or build it on md5(column); until then, rows wait",
    ),
    # Errors in the values sent.
    "22": _Meaning("refuses a value{of}", "docs/postgresql.md lists the values that PostgreSQL cannot hold"),
    "22P05": _Meaning(
        "refuses a name or a comment{of} that the database's encoding cannot represent",
        "create the database with ENCODING 'UTF8' TEMPLATE template0",
    ),
}


@contextmanager
def reported(table: str | None = None) -> Iterator[None]:
    """Translate psycopg's errors into PostgresTroubleError, with a one-line message that names the table."""
    try:
        yield
    except psycopg.Error as error:
        meaning = _meaning(error)
        does = meaning.does.format(of="" if table is None else f" of gold.{table}")
        said = f"PostgreSQL {does}: {what(error)}; {meaning.todo}"
        raise PostgresTroubleError(said, meaning.word) from None


def is_of_a_row(error: psycopg.Error) -> bool:
    """Return whether a COPY error is about a copied row, rather than the table or the server."""
    return (error.sqlstate or "").startswith(_OF_A_ROW)


def what(error: psycopg.Error) -> str:
    """Return PostgreSQL's message on one line. It might quote a value, but at most one character of text."""
    said = " ".join((error.diag.message_primary or str(error)).split())
    where = error.diag.constraint_name or error.diag.column_name
    if where and where not in said:
        said += f" ({where})"
    return printable(said[:_MOST_CHARACTERS])


def _meaning(error: psycopg.Error) -> _Meaning:
    state = error.sqlstate
    if state is None:
        return _of_connection(error) if isinstance(error, psycopg.OperationalError) else _REFUSES
    known = (_MEANINGS.get(state[:length]) for length in (5, 2))
    return next((one for one in known if one is not None), _REFUSES)


def _of_connection(error: psycopg.OperationalError) -> _Meaning:
    said, needs_password = str(error), error.pgconn is not None and error.pgconn.needs_password
    is_answer = needs_password or (_FATAL in said and not any(one in said for one in _NOT_NOW))
    return _DENIED if is_answer else _AWAY


_DEFAULTS = {"connect_timeout": "5", "tcp_user_timeout": "20000", "application_name": "lakehouse"}
_OURS = {"client_encoding": "UTF8"}  # psycopg would otherwise use the database's encoding
_SESSION = "SET lock_timeout = '10s'; SET timezone = 'UTC'; SET datestyle = 'ISO'"
_IS_READ_ONLY = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean"
_WHOLE, _UNKNOWN = "UTF8", "SQL_ASCII"


def connect(url: str, *, within_s: int | None = None) -> psycopg.Connection:
    """Connect to a writable server. Statements run in transactions.

    With `within_s`, a statement waits at most this long for a lock, and runs for at most twice that time.
    Use the connection within `reported`. Raises PostgresTroubleError.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its message may quote part of a password
        raise PostgresTroubleError(
            f"{URL} has an option that libpq does not know, or an option without a value"
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
    """Return the database's encoding, in PostgreSQL's spelling."""
    return connection.info.parameter_status("server_encoding") or _WHOLE


def takes_any_text(encoding: str) -> bool:
    """Return whether a database with this encoding can store every character."""
    return encoding in {_WHOLE, _UNKNOWN}


def doubts_of_postgres(url: str) -> list[str]:
    """Return warnings about the rows in a working PostgreSQL, one line each."""
    try:
        with connect(url) as connection:
            return list(_doubts(encoding_of(connection)))
    except PostgresTroubleError:  # PostgreSQL has just become unreachable; the export reports that
        return []


def _doubts(encoding: str) -> Iterator[str]:
    advice = "Create it with ENCODING 'UTF8' TEMPLATE template0 (docs/postgresql.md)"
    if encoding == _UNKNOWN:
        yield (
            "PostgreSQL: the database's encoding is SQL_ASCII, so it does not know that its text is "
            f"UTF-8: length() counts bytes, and readers must set client_encoding to UTF8. {advice}"
        )
    elif not takes_any_text(encoding):
        yield (
            f"PostgreSQL: the database's encoding is {encoding}. Rows with characters that it cannot "
            f"represent are not sent there; ops.unsent_rows lists them. {advice}"
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
            f"PostgreSQL is a standby, so rows wait: {URL} must name the primary, even after a failover"
        )
    if is_read_only:
        raise PostgresTroubleError(
            "PostgreSQL is read-only, so rows wait: default_transaction_read_only is on for the server, the "
            f"database or the user in {URL}"
        )
