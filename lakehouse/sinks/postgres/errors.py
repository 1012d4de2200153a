"""Explains PostgreSQL's errors and what to do about them, in one line each, by SQLSTATE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from lakehouse.common.errors import SinkTroubleError
from lakehouse.common.printable import printable

URL = "LAKEHOUSE_POSTGRES_URL"
_MOST_CHARACTERS = 300
_OF_A_ROW = ("22", "54")


class PostgresTroubleError(SinkTroubleError):
    """PostgreSQL is out of reach or full, or refuses a statement."""


class _Meaning(NamedTuple):
    """What PostgreSQL does, for a line that continues with its own message, and what to do."""

    does: str
    todo: str


_AWAY = _Meaning("is out of reach", f"is {URL} right?")
_REFUSES = _Meaning("has refused a statement of the export{of}", "docs/postgresql.md says what it needs")
_MEANINGS = {
    # Errors of the server: the rows wait, and are sent again on a schedule.
    "08": _AWAY,
    "57": _AWAY,
    "57014": _Meaning(
        "has cancelled a statement of the export{of}",
        "it is tried again; if that never succeeds, raise statement_timeout for this user (ALTER ROLE … SET)",
    ),
    "57P05": _Meaning("has ended the export's connection{of}, because it was idle", "it connects again"),
    "25P03": _Meaning(
        "has ended the export's connection{of}, because it was idle within a transaction",
        "it is tried again; raise idle_in_transaction_session_timeout for this user (ALTER ROLE … SET)",
    ),
    "25P04": _Meaning(
        "has ended a transaction of the export{of}, because it took too long",
        "it is tried again; raise transaction_timeout for this user (ALTER ROLE … SET)",
    ),
    "55P03": _Meaning(
        "has not given the export the locks that it needs{of}",
        "it is tried again; pg_stat_activity and pg_locks show which session holds them",
    ),
    "40": _Meaning("has ended a transaction of the export{of} in favour of another one", "it is tried again"),
    "25006": _Meaning(
        "is read-only, so rows{of} wait",
        f"it is a standby, and {URL} has to name the primary, also after a failover; or "
        "default_transaction_read_only is on for the server, the database or this user",
    ),
    "53": _Meaning("has run out of a resource, so rows{of} wait", "they are sent once it has it again"),
    "53100": _Meaning("has no space on its disk, so rows{of} wait", "they are sent once it has"),
    "53300": _Meaning("has no connection to spare, so rows{of} wait", "raise max_connections, or end others"),
    "58": _Meaning("has an internal error{of}", "its log says more; it is tried again"),
    "XX": _Meaning("has an internal error{of}", "its log says more; it is tried again"),
    # Missing rights.
    "28": _Meaning("has refused the user", f"is {URL} right?"),
    "42501": _Meaning(f"denies the user of {URL} a right", "docs/postgresql.md, Access"),
    # Errors of the table in PostgreSQL: the rows wait until a person has fixed it.
    "42P01": _Meaning(
        "has lost a table{of}",
        "it is made again; if that does not help, a connection pooler may pool transactions, not sessions",
    ),
    "42": _Meaning(
        "cannot take rows{of} as the table is there",
        "drop it, and the export makes it again and fills it; or docs/postgresql.md",
    ),
    "0A": _Meaning(
        "cannot take rows{of} as the table is there", "drop it, and the export makes it again and fills it"
    ),
    "23": _Meaning("has a constraint that refuses a row{of}", "drop the constraint: rows wait until then"),
    "23502": _Meaning(
        "has a column that refuses a row{of}",
        "ALTER TABLE … ALTER COLUMN … DROP NOT NULL: rows wait until then",
    ),
    "P0": _Meaning("has a trigger that refuses a row{of}", "fix or drop the trigger: rows wait until then"),
    "54": _Meaning(
        "has an index, or a limit, that refuses a row{of}",
        "drop the index, or build it on md5(column): rows wait until then",
    ),
    # Errors of the values that are sent.
    "22": _Meaning("refuses a value{of}", "docs/postgresql.md says which values it cannot hold"),
    "22P05": _Meaning(
        "refuses a name or a comment{of}, which the database's encoding cannot hold",
        "create the database with ENCODING 'UTF8' TEMPLATE template0",
    ),
}


@contextmanager
def reported(table: str | None = None) -> Iterator[None]:
    """Translate failures into PostgresTroubleError, in one line with the gold table, if given."""
    try:
        yield
    except psycopg.Error as error:
        meaning = _meaning(error)
        does = meaning.does.format(of="" if table is None else f" of gold.{table}")
        raise PostgresTroubleError(f"PostgreSQL {does}: {what(error)}; {meaning.todo}") from None


def is_of_a_row(error: psycopg.Error) -> bool:
    """Tell whether an error of COPY is about a copied row, not about the table or the server."""
    return (error.sqlstate or "").startswith(_OF_A_ROW)


def what(error: psycopg.Error) -> str:
    """Return PostgreSQL's own message in one line; it may quote a value, but at most a character of text."""
    said = " ".join((error.diag.message_primary or str(error)).split())
    where = error.diag.constraint_name or error.diag.column_name
    if where and where not in said:
        said += f" ({where})"
    return printable(said[:_MOST_CHARACTERS])


def _meaning(error: psycopg.Error) -> _Meaning:
    state = error.sqlstate
    if state is None:
        return _AWAY if isinstance(error, psycopg.OperationalError) else _REFUSES
    known = (_MEANINGS.get(state[:length]) for length in (5, 2))
    return next((one for one in known if one is not None), _REFUSES)
