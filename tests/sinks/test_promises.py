"""Every built-in store, and the store in docs/sinks.md, keeps the promises that `lakehouse.testing` tests."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
import redis
from pydantic import SecretStr

from lakehouse.common.errors import SinkTroubleError
from lakehouse.settings import Settings
from lakehouse.sinks import SinkKind
from lakehouse.sinks.postgres import sink as to_postgres
from lakehouse.sinks.redis import sink as to_redis
from lakehouse.testing import PROMISES, AssertKept, StoreUnderTest
from tests.sinks import sqlite_of_page
from tests.support.postgres_servers import Server
from tests.support.redis_servers import at_socket

EACH = [PROMISES[0], *(pytest.param(one, marks=pytest.mark.soak) for one in PROMISES[1:])]


@pytest.mark.parametrize("promise", EACH)
def test_redis_keeps_its_promises(
    promise: str, assert_kept: AssertKept, lake_settings: Settings, tmp_path: Path
) -> None:
    directory = tmp_path / "redis"
    with at_socket(directory) as url, redis.Redis.from_url(url, decode_responses=True) as client:

        def there() -> dict[str, int]:
            rows = [json.loads(str(client.get(key))) for key in client.scan_iter("lakehouse:proof_1h:row:*")]
            return {row["userId"]: int(Decimal(row["totalAmount"])) for row in rows if "userId" in row}

        def damage(user: str) -> None:
            (key,) = client.scan_iter(f"lakehouse:proof_1h:row:{user}:*")
            client.set(key, json.dumps({**json.loads(str(client.get(key))), "totalAmount": "999"}))

        @contextmanager
        def outage() -> Iterator[None]:
            hidden = directory / "hidden.sock"
            (directory / "redis.sock").rename(hidden)
            yield
            hidden.rename(directory / "redis.sock")

        settings = lake_settings.changed({"redis.url": SecretStr(url)})
        store = StoreUnderTest(to_redis.KIND, settings, there, client.flushall, damage, outage)
        assert_kept(promise, store)


@pytest.mark.parametrize("promise", EACH)
def test_postgresql_keeps_its_promises(
    promise: str, assert_kept: AssertKept, lake_settings: Settings, database: str, postgres_server: Server
) -> None:
    name = database.rpartition("/")[2]

    def there() -> dict[str, int]:
        with psycopg.connect(database) as connection:
            rows = connection.execute("SELECT user_id, total_amount FROM gold.proof_1h").fetchall()
        return {user: int(total) for user, total in rows}

    def run(statement: str) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(statement)

    @contextmanager
    def outage() -> Iterator[None]:
        with postgres_server.connect() as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            connection.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
            )
            yield
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    store = StoreUnderTest(
        to_postgres.KIND,
        lake_settings.changed({"postgres.url": SecretStr(database)}),
        there,
        lose=lambda: run("DROP SCHEMA gold CASCADE"),
        damage=lambda user: run(f"UPDATE gold.proof_1h SET total_amount = 999 WHERE user_id = '{user}'"),
        outage=outage,
    )
    assert_kept(promise, store)


def sqlite_store(kind: SinkKind, settings: Settings, file: Path) -> StoreUnderTest:
    """Return the sink of docs/sinks.md, with its database in a file."""
    message = "json_extract(message, '$.totalAmount')"

    def run(statement: str) -> list[tuple[str, str]]:
        with closing(sqlite3.connect(file)) as database, database:
            return database.execute(statement).fetchall()

    def there() -> dict[str, int]:
        rows = run(f"SELECT json_extract(message, '$.userId'), {message} FROM gold")
        return {user: int(Decimal(total)) for user, total in rows}

    @contextmanager
    def outage() -> Iterator[None]:
        file.rename(file.with_suffix(".away"))
        file.mkdir()
        yield
        file.rmdir()
        file.with_suffix(".away").rename(file)

    return StoreUnderTest(
        kind,
        settings.changed({"sinks": {"sqlite": {"file": str(file)}}}),
        there,
        lose=file.unlink,
        damage=lambda user: run(f"UPDATE gold SET message = '{{}}' WHERE key LIKE '{user}:%'"),
        outage=outage,
    )


@pytest.mark.parametrize("promise", EACH)
def test_the_sink_of_the_page_keeps_its_promises(
    promise: str,
    assert_kept: AssertKept,
    lake_settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with sqlite_of_page.installed(tmp_path, sqlite_of_page.source(), monkeypatch) as module:
        assert_kept(promise, sqlite_store(module.KIND, lake_settings, tmp_path / "gold.sqlite"))


NO_CHECK = ("if reached != sending.span.before and not", "if False and not")
SKIPS_OLD = (
    ("= 0, sending.span.after\n", "= 0, sending.span.after\n        self._old = reached\n"),
    (
        "for one in changes:\n",
        "for one in changes:\n                if self._old and one.version < self._old.version: continue\n",
    ),
)
BROKEN = (
    ("has what gold has", [("AND key = ?", "AND key = ? AND false")]),
    (
        "killed among rows",
        [
            NO_CHECK,
            *SKIPS_OLD,
            ("        self._old = reached\n", "        self._old = reached\n        self.end()\n"),
        ],
    ),
    ("never goes back", [NO_CHECK]),
    ("fills what it lost", [("return self._position() is None", "return False")]),
    ("outlasts an outage", [("except sqlite3.Error as error:", "except KeyError as error:")]),
    ("outlasts an outage", [("except SinkTroubleError:", "except KeyError:")]),
    (
        "follows a new table",
        [NO_CHECK, *SKIPS_OLD, ("WHERE name = ? AND id = ?", "WHERE name = ? AND ? IS NOT NULL")],
    ),
    ("audit sees damage", [("if expected.get(key) != there.get(key)", "if False")]),
)
"""Promises, each with mistakes in the sink of the page that break it."""


@pytest.mark.soak
@pytest.mark.parametrize("broken", BROKEN)
def test_a_sink_with_a_mistake_breaks_the_promise(
    broken: tuple[str, list[tuple[str, str]]],
    assert_kept: AssertKept,
    lake_settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (promise, mistakes), text = broken, sqlite_of_page.source()
    for right, wrong in mistakes:
        assert right in text
        text = text.replace(right, wrong)
    with (
        sqlite_of_page.installed(tmp_path, text, monkeypatch) as module,
        pytest.raises((AssertionError, SinkTroubleError, sqlite3.Error)),
    ):
        assert_kept(promise, sqlite_store(module.KIND, lake_settings, tmp_path / "gold.sqlite"))
