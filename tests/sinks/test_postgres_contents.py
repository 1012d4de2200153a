"""`lakehouse erase verify` in PostgreSQL: rows, statistics, and rows that a policy hides."""

from __future__ import annotations

import json
import uuid

import psycopg
from pydantic import SecretStr

from lakehouse.operations.erasure.report import Report
from lakehouse.operations.erasure.subjects import subjects_in
from lakehouse.operations.erasure.verifying import verify
from lakehouse.settings import Settings
from tests.support.postgres_servers import Server

ANNA, CAFE, NUMBER = "anna-4711", "café/4712", 4713000
IDS = f"nobody-1\n{ANNA}\n{CAFE}\n{NUMBER}\n".encode()


def searched(settings: Settings, url: str) -> Report:
    """Search the database for the ids."""
    settings = settings.changed({"postgres.url": SecretStr(url)})
    return verify(subjects_in(IDS), settings, (), lambda _: None, only=["postgres"])


def test_rows_and_statistics_are_searched(lake_settings: Settings, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA gold")
        connection.execute(
            'CREATE TABLE gold."of users" (who text, n bigint, doc jsonb, raw bytea, _version bigint)'
        )
        connection.execute("CREATE TABLE gold.empty (who text)")
        insert = 'INSERT INTO gold."of users" VALUES (%s, %s, %s, %s, 4713000)'
        for _ in range(3):
            connection.execute(insert, [ANNA, NUMBER, json.dumps({"who": CAFE}), ANNA.encode()])
        connection.execute(insert, ["berta-1", 1, "{}", b""])
        connection.execute('ANALYZE gold."of users"')
        connection.execute('DELETE FROM gold."of users" WHERE n = 1')

    report = searched(lake_settings, database)

    rows, statistics = report.places
    assert (rows.name, rows.kind, rows.lines) == ("gold.of users", "table", (2, 3, 4))
    assert rows.parts == {"who": 3, "n": 3, "doc": 3, "raw": 3}
    assert (statistics.name, statistics.kind) == ("gold.of users", "statistics, until the next ANALYZE")
    assert {"who", "n"} <= statistics.parts.keys()
    assert report.unread == ()


def test_rows_that_a_policy_hides_are_out_of_reach(
    lake_settings: Settings, postgres_server: Server, database: str
) -> None:
    reader = f"reader_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {reader} LOGIN PASSWORD 'x'")
        connection.execute("CREATE SCHEMA gold")
        connection.execute("CREATE TABLE gold.users AS SELECT 'anna-4711' AS who")
        connection.execute("ALTER TABLE gold.users ENABLE ROW LEVEL SECURITY")
        connection.execute(f"GRANT USAGE ON SCHEMA gold TO {reader}")
        connection.execute(f"GRANT SELECT ON gold.users TO {reader}")
        name = connection.info.dbname

    report = searched(lake_settings, postgres_server.url(name, reader, "x"))

    assert report.places == ()
    assert ["row-level security policy" in one.why for one in report.unread] == [True]
