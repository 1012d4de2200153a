"""Rows and encodings: each row that a database cannot store is reported, and all others are stored."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from pyspark.sql.types import LongType, StringType

from lakehouse.engine.ops_tables import unsent_rows
from lakehouse.sinks.postgres import layout as postgres_layout
from lakehouse.sinks.postgres.client import PostgresTroubleError, doubts_of_postgres
from tests.sinks.gold_rows import Gold, state
from tests.sinks.tables_there import NOTES, There, ask, declared, row
from tests.support import postgres_servers
from tests.support.postgres_servers import Server

TEXTS = ["plain", "é", "€", "日本", "😀", "a␀0b", "ä\x9f"]
ALL = dict(enumerate(TEXTS))
LACKED = {
    "UTF8": {},
    "SQL_ASCII": {},
    "LATIN1": {2: "€ (U+20AC)", 3: "日 (U+65E5)", 4: "😀 (U+1F600)", 5: "␀ (U+2400)"},
    "EUC_JP": {2: "€ (U+20AC)", 4: "😀 (U+1F600)", 5: "␀ (U+2400)", 6: r"\x9f (U+009F)"},
}


def database_of(server: Server, encoding: str) -> str:
    """Return the URL of an empty database with this encoding."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    return server.url(name)


def texts_in(url: str) -> dict[int, str]:
    return {int(id_): note for id_, note in ask(url, "SELECT id, note FROM gold.notes")}


def check(url: str, encoding: str) -> None:
    """Check each of TEXTS as a value and as a key."""
    lacked = {number: f"the encoding {encoding} has no {what}" for number, what in LACKED[encoding].items()}
    there = There(url)
    assert there.send(*(row(str(number), text) for number, text in ALL.items())) == lacked
    assert texts_in(url) == {number: text for number, text in ALL.items() if number not in lacked}

    by_text = There(url, declared("by_text", id=StringType(), n=LongType()))
    rows = [row(text)._replace(line=f"{text}\t1") for text in TEXTS]
    assert by_text.send(*rows) == lacked
    expected = {text for number, text in ALL.items() if number not in lacked}
    assert {id_ for (id_,) in ask(url, "SELECT id FROM gold.by_text")} == expected
    assert by_text.send(*(one._replace(version=2, is_gone=True) for one in rows)) == {}
    assert ask(url, "SELECT id FROM gold.by_text") == []


@pytest.mark.parametrize("encoding", LACKED)
def test_a_row_with_a_character_that_the_database_lacks_is_refused_alone(
    postgres_server: Server, encoding: str
) -> None:
    check(database_of(postgres_server, encoding), encoding)


@pytest.mark.soak
def test_a_server_that_was_made_under_the_locale_c_gets_the_same() -> None:
    with postgres_servers.server(encoding="LATIN1") as server:
        assert ask(server.url(), "SHOW server_encoding") == [("LATIN1",)]
        check(server.url(), "LATIN1")


def test_a_row_that_becomes_one_which_the_database_cannot_hold_leaves_no_former_state(
    postgres_server: Server,
) -> None:
    url = database_of(postgres_server, "LATIN1")
    there = There(url)
    there.send(row("1", "é"), row("2", "b"))
    assert there.send(row("1", "€", 2), row("2", "c", 2)).keys() == {0}
    assert texts_in(url) == {2: "c"}
    assert there.send(row("1", "e", 3), row("2", "€", 3, is_gone=True)) == {}
    assert texts_in(url) == {1: "e"}


def test_a_value_that_postgresql_has_not_got_is_refused_alone(database: str) -> None:
    there = There(database)
    rows = [
        row(str(number), at="+12345-01-01 00:00:00+00" if number in {3, 4, 90} else "epoch")
        for number in range(100)
    ]
    refused = there.send(*rows)
    assert refused.keys() == {3, 4, 90}
    assert refused[3].startswith("time zone displacement out of range")
    assert len(texts_in(database)) == 97


def test_a_name_and_a_comment_that_the_encoding_lacks(postgres_server: Server) -> None:
    url = database_of(postgres_server, "LATIN1")
    there = There(url, NOTES)
    there.connection.execute("COMMENT ON TABLE gold.notes IS 'x'")
    with pytest.raises(PostgresTroubleError, match=r"a comment of gold.prices that .* ENCODING 'UTF8'"):
        There(url, declared("prices", id=StringType(), 料金=LongType()))


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("UTF8", []),
        ("SQL_ASCII", ["encoding is SQL_ASCII, so it does not know that its text is UTF-8"]),
        ("LATIN1", ["encoding is LATIN1. Rows with characters that it cannot represent are not sent there"]),
    ],
)
def test_the_encoding_is_warned_of(postgres_server: Server, encoding: str, said: list[str]) -> None:
    found = doubts_of_postgres(database_of(postgres_server, encoding))
    assert len(found) == len(said)
    for doubt, part in zip(found, said, strict=True):
        assert part in doubt
        assert "ENCODING 'UTF8' TEMPLATE template0" in doubt


@pytest.mark.soak
def test_the_export_goes_on_beside_a_row_that_the_database_cannot_hold(
    lake_of: Callable[[str], Gold], postgres_server: Server
) -> None:
    made = lake_of(database_of(postgres_server, "LATIN1"))
    made.put(state("auth", 0), state("日本", 0), state("größe", 0))
    assert made.written() == [2]
    made.put(state("auth", 0, count=2), state("日本", 0, count=2))
    assert made.written() == [1]

    assert made.there() == {("auth", 0, 2, 2), ("größe", 0, 1, 1)}
    noted = unsent_rows.read(made.lake, "metrics_1m", postgres_layout.NAME)
    assert noted is not None
    columns = "version", "reason", "size_bytes", "limit_bytes"
    why = "refused: the encoding LATIN1 has no 日 (U+65E5)"
    assert sorted(map(tuple, noted.select(*columns).collect())) == [
        (1, why, None, None),
        (2, why, None, None),
    ]
    audited = made.audited()
    assert (audited.compared, audited.differences) == (2, 0)
    assert audited.notes[1:] == ("1 rows have values that PostgreSQL cannot hold; see ops.unsent_rows",)

    ask(made.settings.postgres.url.get_secret_value(), "TRUNCATE gold.metrics_1m")
    made.run()
    assert {one[0] for one in made.there()} == {"auth", "größe"}
