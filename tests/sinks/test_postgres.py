"""A gold table's rows as exported to PostgreSQL: typed, written once, and equal to gold after failures."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import SettingsError, SinkTroubleError, StreamError
from lakehouse.engine.layers import export as export_layer
from lakehouse.engine.layers import gold
from lakehouse.engine.ops_tables import unsent_rows
from lakehouse.settings import Settings
from lakehouse.sinks import registry
from lakehouse.sinks.change import Change
from lakehouse.sinks.postgres import layout as postgres_layout
from lakehouse.sinks.postgres import rows as postgres
from lakehouse.sinks.postgres.statements import require_postgres
from lakehouse.storage import tables
from tests.sinks.gold_rows import START, TABLE, Gold, state
from tests.support import postgres_servers
from tests.support.certificates import certified
from tests.support.postgres_servers import PASSWORD, Server
from tests.support.streams import METRICS_1M


def test_rows_are_typed_and_named_by_the_declaration_and_follow_gold(made: Gold) -> None:
    made.put(state("auth", 0), state("auth", 1))  # version 1
    made.put(state("auth", 0, count=2, p99=float("nan")), state("検\t索\\", 2))  # version 2
    assert made.written() == [3]
    made.take_away(state("auth", 1))  # version 3
    made.put(state("auth", 0, count=3))  # version 4
    assert made.written() == [2]

    assert made.there() == {("auth", 0, 3, 4), ("検\t索\\", 2, 1, 2)}
    generation = tables.generation_ms(made.spark, made.path)
    assert made.ask("SELECT * FROM gold.metrics_1m WHERE service_id = 'auth'") == [
        (
            "auth",
            "latency",
            START,
            START + timedelta(minutes=1),
            3,
            7.5,
            2.5,
            2.5,
            2.5,
            None,
            None,
            2.5,
            2.5,
            2.5,
            2.5,
            START + timedelta(microseconds=59_999_999),
            False,
            generation,
            4,
        )
    ]
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'metrics_1m'"
    types: dict[str, str] = dict(made.ask(columns))
    assert (types["window_start"], types["count"], types["p99"], types["is_final"]) == (
        "timestamp with time zone",
        "bigint",
        "double precision",
        "boolean",
    )
    assert "sketch" not in types, "it is state that only folds need"
    assert made.ask("SELECT obj_description('gold.metrics_1m'::regclass)") == [(METRICS_1M.comment,)]
    position = "SELECT table_name, version, files, is_empty FROM gold.lakehouse_positions"
    assert made.ask(position) == [("metrics_1m", 5, None, False)]
    audited = made.audited()
    assert (audited.compared, audited.differences, audited.notes) == (2, 0, ("version 4 of gold",))


def test_rows_that_are_sent_again_are_written_once_and_never_over_newer_ones(made: Gold) -> None:
    made.put(state("auth", 0), state("cart", 0))
    assert made.written() == [2]
    made.put(state("auth", 0, count=2))
    assert made.written() == [1]
    made.forget()
    assert made.written() == [0]

    # The export restarts with the current rows; PostgreSQL knows its own position and catches up separately.
    made.put(state("cart", 0, count=2))
    made.put(state("cart", 0, count=3))
    made.ask("UPDATE gold.metrics_1m SET _version = 9, count = 7 WHERE service_id = 'auth'")
    made.put(state("auth", 0, count=3))
    made.forget()
    assert made.written() == [0, 1]
    assert made.there() == {("auth", 0, 7, 9), ("cart", 0, 3, 4)}


@pytest.mark.parametrize(
    "loss",
    [
        "DROP TABLE gold.metrics_1m",
        *(
            pytest.param(one, marks=pytest.mark.soak)
            for one in (
                "TRUNCATE gold.metrics_1m",
                "DELETE FROM gold.metrics_1m",
                "DROP SCHEMA gold CASCADE",
                "DELETE FROM gold.lakehouse_positions",
                "ALTER TABLE gold.metrics_1m DROP COLUMN p99",
            )
        ),
    ],
)
def test_a_table_that_has_lost_its_rows_is_made_and_filled_again(made: Gold, loss: str) -> None:
    made.put(state("auth", 0), state("cart", 0))
    made.put(state("auth", 0, count=2))
    made.run()

    made.ask(loss)
    made.run()

    assert {row[:3] for row in made.there()} == {("auth", 0, 2), ("cart", 0, 1)}
    assert made.ask("SELECT DISTINCT p99 FROM gold.metrics_1m") == [(2.5,)]
    assert made.audited().differences == 0
    made.put(state("auth", 0, count=3))
    assert made.written() == [1]


def test_a_database_that_comes_later_gets_all_rows_and_one_of_a_deleted_table_gets_the_new_ones(
    made: Gold, lake_of: Callable[[str], Gold], postgres_server: Server
) -> None:
    made.put(state("auth", 0), state("cart", 0))
    made.run()
    with postgres_server.connect() as connection:
        connection.execute("CREATE DATABASE later")
    later = lake_of(postgres_server.url("later"))
    later.run()
    assert later.there() == {("auth", 0, 1, 1), ("cart", 0, 1, 1)}

    shutil.rmtree(made.path)
    made.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    made.lake.ensure(gold.spec(TABLE))
    made.put(state("desk", 0))
    made.run()
    assert made.there() == {("desk", 0, 1, 1)}
    assert made.audited().differences == 0


@pytest.mark.soak
def test_a_lake_that_is_older_than_the_rows_there_changes_nothing(
    made: Gold, spark: SparkSession, tmp_path: Path
) -> None:
    made.put(state("auth", 0))
    made.run()
    newer = Gold(spark, made.settings.changed({"lake": str(tmp_path / "newer")}))
    newer.put(state("cart", 0))
    newer.run()
    assert newer.there() == {("cart", 0, 1, 1)}

    made.put(state("auth", 0, count=2))
    with pytest.raises(SinkTroubleError, match=r"rows of gold.metrics_1m from a lake that is newer"):
        made.run()
    assert newer.there() == {("cart", 0, 1, 1)}


def test_rows_that_come_in_slices_are_one_transaction(made: Gold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_layer, "LARGE_FROM_ROWS", 1)
    monkeypatch.setattr(export_layer, "_CHUNK_ROWS", 2)
    made.put(*(state(f"service {number}", 0) for number in range(5)))
    assert made.written() == [5]
    made.take_away(state("service 0", 0))
    made.put(*(state(f"service {number}", 0, count=2) for number in range(1, 5)))

    write, chunks = postgres.ToPostgres.write, list[int]()

    def breaking(sink: postgres.ToPostgres, changes: Sequence[Change]) -> None:
        chunks.append(len(changes))
        write(sink, changes)
        if len(chunks) == 2:
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(postgres.ToPostgres, "write", breaking)
        with pytest.raises(StreamError, match="ZeroDivisionError"):
            made.run()
    assert chunks == [2, 2]
    assert made.there() == {(f"service {number}", 0, 1, 1) for number in range(5)}
    assert made.written() == [5]
    assert made.there() == {(f"service {number}", 0, 2, 3) for number in range(1, 5)}


def test_what_an_index_or_a_text_of_postgresql_cannot_hold_does_not_stop_the_other_rows(made: Gold) -> None:
    names = ["a\0b", "a␀b", "a␀0b", "x" * 2_400, "y" * 3_000, "\0" * 620]
    made.put(*(state(name, 0) for name in names))
    made.run()

    found = {name for (name,) in made.ask("SELECT service_id FROM gold.metrics_1m")}
    assert found == {"a␀0b", "a␀␀b", "a␀␀0b", "x" * 2_400}
    noted = unsent_rows.read(made.lake, "metrics_1m", postgres_layout.NAME)
    assert noted is not None
    sizes = [(row.reason, row.limit_bytes, row.size_bytes // 1_000) for row in noted.collect()]
    assert sorted(sizes) == [("too_large", 2_500, 2), ("too_large", 2_500, 3)], "NUL is kept as four bytes"
    audited = made.audited()
    assert (audited.compared, audited.differences) == (4, 0)
    assert audited.notes[1:] == ("2 rows have keys too long for an index; see ops.unsent_rows",)


def test_the_audit_sees_what_is_missing_what_is_wrong_and_what_gold_has_not(made: Gold) -> None:
    made.put(state("auth", 0), state("cart", 0), state("desk", 0))
    made.run()
    made.ask("DELETE FROM gold.metrics_1m WHERE service_id = 'auth'")
    made.ask("UPDATE gold.metrics_1m SET sum = 1e9 WHERE service_id = 'cart'")
    made.ask("UPDATE gold.metrics_1m SET service_id = 'invented' WHERE service_id = 'desk'")

    audited = made.audited()

    assert (audited.compared, audited.differences) == (3, 4)
    said = {str(one.key["service_id"]): one.what for one in audited.examples}
    assert said.pop("cart").startswith('PostgreSQL has {"avg": 2.5, "max": 2.5')
    assert said == {
        "auth": "in gold, but not in PostgreSQL",
        "desk": "in gold, but not in PostgreSQL",
        "invented": "in PostgreSQL, but not in gold",
    }
    made.ask("TRUNCATE gold.lakehouse_positions")
    (example,) = made.audited().examples
    assert example.what == "PostgreSQL has no position for this table"


@pytest.mark.soak
def test_a_column_of_another_type_is_named(made: Gold) -> None:
    made.put(state("auth", 0))
    made.run()
    made.ask("ALTER TABLE gold.metrics_1m ALTER COLUMN count TYPE integer")
    made.put(state("auth", 1))
    with pytest.raises(SinkTroubleError, match=r"has type integer for column count of gold"):
        made.run()


# Access.


OTHER = "other"


def refused(url: str) -> str:
    with pytest.raises(SinkTroubleError) as caught:
        require_postgres(url)
    text = str(caught.value)
    assert "\n" not in text
    assert PASSWORD not in text
    return text


def test_a_url_that_leads_nowhere_is_one_clear_line(postgres_server: Server, database: str) -> None:
    require_postgres(database)
    assert postgres_server.connect(database.rpartition("/")[2]).execute(
        "SELECT to_regnamespace('gold')"
    ).fetchone() == (None,), "asking changes nothing"

    assert 'password authentication failed for user "lakehouse"' in refused(postgres_server.url(secret=OTHER))
    assert 'database "none" does not exist; is postgres.url right?' in refused(postgres_server.url("none"))
    away = postgres_server.url().replace(f":{postgres_server.port}/", ":1/")
    assert refused(away).startswith("PostgreSQL is unreachable: connection failed")
    assert "an option that libpq does not know" in refused(f"{database}?sslmod=require")
    assert "does not support SSL" in refused(f"{database}?sslmode=require")


def test_a_missing_right_is_named(postgres_server: Server, database: str) -> None:
    name = database.rpartition("/")[2]
    with postgres_server.connect(name) as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'se/cret'")
    text = refused(postgres_server.url(name, user="reader"))
    assert text.startswith(
        f"PostgreSQL denies a permission to the user in postgres.url: permission denied for database {name}"
    )


@pytest.mark.soak
def test_tls_is_what_the_url_says(tmp_path: Path) -> None:
    files = certified(tmp_path)
    with postgres_servers.server(files) as server:
        require_postgres(f"{server.url()}?sslmode=verify-full&sslrootcert={files.authority}")
        other = certified(tmp_path, "eve")
        assert "SSL error: " in refused(f"{server.url()}?sslmode=verify-full&sslrootcert={other.authority}")


def test_a_table_that_names_another_sink_is_refused(lake_settings: Settings) -> None:
    table = replace(TABLE, export=replace(TABLE.export, sinks=("postgres", "oracle")))
    with pytest.raises(
        SettingsError, match=r"gold.metrics_1m: unknown sinks: oracle; known sinks: postgres, redis"
    ):
        registry.used_by(table, lake_settings)
    assert [kind.name for kind in registry.used_by(TABLE, lake_settings)] == []
