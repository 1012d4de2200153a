"""What PostgreSQL refuses, and why: each message is one line with the table and a remedy that works."""

from __future__ import annotations

import re
import secrets
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from pyspark.sql.types import LongType, StringType

from lakehouse.sinks.postgres import statements as postgres_statements
from lakehouse.sinks.postgres.client import PostgresTroubleError, reported
from lakehouse.sinks.postgres.layout import MOST_KEY_BYTES
from lakehouse.sinks.postgres.statements import Sql, require_postgres, try_row
from tests.sinks.tables_there import NOTES, There, ask, declared, row
from tests.support import postgres_servers
from tests.support.postgres_servers import Server

COLUMNS = (
    "id text, note text, n bigint, at timestamptz, _generation bigint NOT NULL, _version bigint NOT NULL"
)


@contextmanager
def trouble(*parts: str) -> Iterator[None]:
    """Expect a one-line error that contains these parts in order."""
    with pytest.raises(PostgresTroubleError) as caught:
        yield
    text = str(caught.value)
    assert re.fullmatch(".*".join(["", *map(re.escape, parts), ""]), text), text


def refused(url: str) -> str:
    """Return the error for a table that cannot take rows; the export's and the doctor's are the same."""
    with pytest.raises(PostgresTroubleError) as caught:
        There(url)
    with pytest.raises(PostgresTroubleError) as tried:
        try_row(url, Sql(NOTES))
    assert str(caught.value) == str(tried.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("there", "said", "way_out"),
    [
        (
            f"CREATE TABLE gold.notes ({COLUMNS})",
            "gold.notes with no key, but the export needs (id)",
            'ALTER TABLE gold.notes ADD PRIMARY KEY ("id")',
        ),
        (
            f"CREATE TABLE gold.notes ({COLUMNS}, PRIMARY KEY (id, n))",
            "gold.notes with the key (id, n), but the export needs (id)",
            "DROP TABLE gold.notes",
        ),
        (
            f"CREATE TABLE gold.notes ({COLUMNS}, PRIMARY KEY (id) DEFERRABLE)",
            "gold.notes with no key, but",
            "DROP TABLE gold.notes",
        ),
        (
            f"CREATE TABLE gold.notes ({COLUMNS}, who text NOT NULL, PRIMARY KEY (id))",
            "a NOT NULL column who without a default in gold.notes, but",
            'ALTER TABLE gold.notes ALTER COLUMN "who" DROP NOT NULL',
        ),
        (
            f"CREATE TABLE gold.notes ({COLUMNS.replace('n bigint', 'n integer')}, PRIMARY KEY (id))",
            "type integer for column n of gold.notes, but the export needs bigint",
            "DROP TABLE gold.notes",
        ),
        (
            "CREATE TABLE gold.notes (id text PRIMARY KEY, note text)",
            "gold.notes that the export did not create: it lacks _generation, _version",
            "DROP TABLE gold.notes",
        ),
        ("CREATE VIEW gold.notes AS SELECT 1 AS id", "a view called gold.notes", "DROP VIEW gold.notes"),
        ("CREATE SEQUENCE gold.notes", "a sequence called gold.notes", "DROP SEQUENCE gold.notes"),
    ],
)
def test_what_is_there_already_is_named_with_a_way_out_that_leads_out(
    database: str, there: str, said: str, way_out: str
) -> None:
    ask(database, f"CREATE SCHEMA gold; {there}")
    text = refused(database)
    assert said in text
    assert way_out.split(maxsplit=1)[0] in text.upper()
    if way_out.startswith("ALTER") or "TABLE" in way_out:
        assert way_out in text
    ask(database, way_out)
    assert There(database).send(row("1", "a")) == {}
    try_row(database, Sql(NOTES))
    assert ask(database, "SELECT id, note FROM gold.notes") == [("1", "a")], "the doctor has left nothing"
    assert ask(database, "SELECT * FROM gold.lakehouse_positions") == []


ONE_PART = "CREATE TABLE gold.one PARTITION OF gold.notes FOR VALUES WITH (MODULUS 1, REMAINDER 0)"


@pytest.mark.parametrize(
    "there",
    [
        f"CREATE TABLE gold.notes ({COLUMNS}, seen timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (id))",
        f"CREATE TABLE gold.notes ({COLUMNS}, no bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (id))",
        f"CREATE TABLE gold.notes ({COLUMNS}); CREATE UNIQUE INDEX ON gold.notes (id) INCLUDE (note)",
        f"CREATE TABLE gold.notes ({COLUMNS}, PRIMARY KEY (id)) PARTITION BY HASH (id); {ONE_PART}",
    ],
)
def test_a_table_of_one_s_own_making_may_be_more_than_the_export_needs(database: str, there: str) -> None:
    ask(database, f"CREATE SCHEMA gold; {there}")
    one = There(database)
    one.send(row("1", "a"), row("2", "b"))
    one.send(row("1", "c", 2), row("2", "b", 2, is_gone=True))
    try_row(database, Sql(NOTES))
    assert ask(database, "SELECT id, note FROM gold.notes") == [("1", "c")]


RAISES = (
    "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$; "
    "CREATE TRIGGER no BEFORE INSERT ON gold.notes FOR EACH ROW EXECUTE FUNCTION no()"
)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (
            "ALTER TABLE gold.notes ADD CHECK (n > 5) NOT VALID",
            'a constraint that refuses a row of gold.notes: .*"notes_n_check"',
        ),
        (
            "ALTER TABLE gold.notes ADD UNIQUE (n)",
            'a constraint that refuses a row of gold.notes: .*"notes_n_key"',
        ),
        (
            "UPDATE gold.notes SET note = 'x'; ALTER TABLE gold.notes ALTER note SET NOT NULL",
            'a column that refuses a row of gold.notes: .*"note"',
        ),
        (
            "CREATE INDEX by_note ON gold.notes (note)",
            r'an index, or a limit, .* of gold.notes: .*"by_note".* md5',
        ),
        (RAISES, "a trigger that refuses a row of gold.notes: not today"),
        (
            "ALTER TABLE gold.notes ALTER n ADD GENERATED ALWAYS AS IDENTITY",
            "cannot store rows of gold.notes in the existing table: .* drop the table",
        ),
    ],
)
def test_what_the_owner_of_a_table_has_added_is_named_and_rows_wait(
    database: str, there: str, said: str
) -> None:
    one = There(database)
    one.send(row("1", "a"))
    if "IDENTITY" in there:
        ask(database, "ALTER TABLE gold.notes ALTER n SET NOT NULL")
    ask(database, there)
    with pytest.raises(PostgresTroubleError, match=f"^PostgreSQL has {said}|^PostgreSQL {said}") as caught:
        one.send(row("2", "\\N"), row("3", secrets.token_hex(4_000)))
    assert "\n" not in str(caught.value)
    assert "a7f3" not in str(caught.value)


def test_the_doctor_finds_a_trigger_and_what_is_locked_and_leaves_no_trace(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    There(database).send(row("1", "a"))
    try_row(database, Sql(NOTES))
    ask(database, RAISES)
    with trouble("a trigger that refuses a row of gold.notes: not today"):
        try_row(database, Sql(NOTES))
    assert ask(database, "SELECT id, note, _version FROM gold.notes") == [("1", "a", 1)]

    monkeypatch.setattr(postgres_statements, "_TRIED_WITHIN_S", 1)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE gold.notes")
        with trouble("the export of gold.notes the locks it needs: ", "pg_locks"):
            try_row(database, Sql(NOTES))


def test_the_doctor_tries_a_row_that_is_there_and_waits_for_none(database: str) -> None:
    There(database).send(row("1", "a"))
    ask(database, "ALTER TABLE gold.notes ADD CHECK (n = 1)")  # a made-up row would break this
    try_row(database, Sql(NOTES))
    ask(database, "ALTER TABLE gold.notes DROP CONSTRAINT notes_n_check")
    with psycopg.connect(database) as other:
        other.execute("UPDATE gold.notes SET n = 2")
        try_row(database, Sql(NOTES))


def test_missing_rights_are_named_with_the_grant_that_gives_them(
    postgres_server: Server, database: str
) -> None:
    There(database)
    name = database.rpartition("/")[2]
    role = f"reader_{name}"
    ask(
        database, f"CREATE ROLE {role} LOGIN PASSWORD 'se/cret'; GRANT TEMPORARY ON DATABASE {name} TO {role}"
    )
    url = postgres_server.url(name, user=role)
    assert refused(url).startswith(
        "PostgreSQL denies a permission to the user in postgres.url: permission denied for schema gold"
    )
    ask(database, f"GRANT USAGE ON SCHEMA gold TO {role}; GRANT SELECT ON gold.notes TO {role}")
    for table, lacking in (
        ("lakehouse_positions", "SELECT, INSERT, UPDATE, DELETE"),
        ("notes", "INSERT, UPDATE, DELETE"),
    ):
        text = refused(url)
        assert "a permission" not in text
        grant = re.search(r"GRANT .*", text)
        assert grant is not None
        assert grant[0] == f'GRANT {lacking} ON gold.{table} TO "{role}"'
        ask(database, grant[0])
    There(url)
    with pytest.raises(PostgresTroubleError, match=r"postgres.url: permission denied for schema gold"):
        There(url, declared("others"))


# The server.


def test_timeouts_and_locks_are_no_outage(database: str) -> None:
    one = There(database)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE gold.notes")
        one.connection.execute("SET statement_timeout = '50ms'")
        one.connection.commit()
        with trouble(
            "has cancelled a statement of the export of gold.notes: ",
            "statement timeout; it is retried; ",
        ):
            one.send(row("1"))
        one.connection.rollback()
        one.connection.execute("SET statement_timeout = 0; SET lock_timeout = '50ms'")
        one.connection.commit()
        with trouble(
            "did not grant the export of gold.notes the locks it needs: ",
            "lock timeout; it is retried",
        ):
            one.send(row("1"))
        one.connection.rollback()
    one.send(row("1"))
    one.connection.execute("SET idle_in_transaction_session_timeout = '10ms'")
    select.select([one.connection.fileno()], [], [], 60)  # until the server reports it
    with trouble("has closed the connection for the export of gold.notes because a transaction was idle: "):
        one.send(row("1"))


def test_a_database_that_is_read_only_is_called_so(database: str) -> None:
    one = There(database)
    ask(database, f"ALTER DATABASE {database.rpartition('/')[2]} SET default_transaction_read_only = on")
    for asked in (require_postgres, There):
        with trouble("is read-only, so rows wait: default_transaction_read_only"):
            asked(database)
    one.connection.execute("SET default_transaction_read_only = on")
    one.connection.commit()
    with trouble("is read-only, so rows of gold.notes wait: ", "it is a standby, and postgres.url"):
        one.send(row("1"))


@pytest.fixture
def standby() -> Iterator[Server]:
    with postgres_servers.server() as server:
        server.end(signal.SIGINT)
        server.stand_by()
        server.start()
        yield server


@pytest.mark.soak
def test_a_standby_is_called_so(standby: Server) -> None:
    for asked in (require_postgres, There):
        with trouble("is a standby, so rows wait: postgres.url must name the primary"):
            asked(standby.url())


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("08006", "is unreachable"),
        ("57P01", "is unreachable"),
        ("57P03", "is unreachable"),
        ("40001", "because of a conflict"),
        ("40P01", "because of a conflict"),
        ("53100", "has no disk space left"),
        ("53200", "has run out of a resource"),
        ("53300", "has reached its connection limit"),
        ("28P01", "has refused the user"),
        ("42501", "denies a permission"),
        ("42703", "cannot store rows of gold.t in the existing table"),
        ("0A000", "cannot store rows of gold.t in the existing table"),
        ("23514", "has a constraint"),
        ("22003", "refuses a value of gold.t"),
        ("54000", "has an index, or a limit,"),
        ("P0001", "has a trigger"),
        ("25006", "is read-only"),
        ("42P01", "is missing a table for the export of gold.t"),
        ("58030", "reported an internal error"),
        ("XX001", "reported an internal error"),
        ("21000", "has refused a statement of the export of gold.t"),
    ],
)
def test_each_kind_of_error_has_its_meaning(state: str, said: str) -> None:
    with trouble("PostgreSQL ", said, "words of the server; "), reported("t"):
        raise psycopg.errors.lookup(state)("words of the server")


# Names.


def test_names_that_sql_would_take_for_something_else_are_columns_like_others(database: str) -> None:
    names = ["version", "is_gone", "generation", "t", "i", "excluded", 'a%s"."b%', "select", "Ä" * 31]
    table = declared("n" * 63, (*names[:3], names[6]), **dict.fromkeys(names, StringType()), n=LongType())
    one = There(database, table)
    values = "\t".join(f"v{number}" for number in range(len(names)))
    first = row("")._replace(line=f"{values}\t1")
    assert one.send(first, first._replace(line=first.line.replace("v0", "gone"))) == {}
    assert one.send(first._replace(line=f"{values}\t2", version=2)) == {}
    assert one.send(first._replace(line=first.line.replace("v0", "gone"), version=3, is_gone=True)) == {}
    try_row(database, Sql(table))
    found = ask(database, f'SELECT * FROM gold."{"n" * 63}"')
    assert found == [(*(f"v{number}" for number in range(len(names))), 2, 7, 2)]
    There(database, table)  # accepts the table that it made


def test_the_longest_key_that_is_sent_fits_an_index(database: str) -> None:
    """An index entry has at most 2,704 bytes after compression, so random keys are the worst case."""
    one = There(database)
    one.send(row(secrets.token_hex(MOST_KEY_BYTES // 2)))
    with trouble("an index, or a limit, that refuses a row of gold.notes: ", "notes_pkey"):
        one.send(row(secrets.token_hex(2_800)))
