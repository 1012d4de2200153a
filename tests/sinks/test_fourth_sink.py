"""The sink in docs/sinks.md works as described, in an installed package with an entry point."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.common.errors import SinkTroubleError
from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.audit.stores import check_store
from lakehouse.settings import Settings
from tests.sinks import sqlite_of_page
from tests.sinks.gold_rows import TABLE, Gold, state


@pytest.fixture
def sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the sink from the page's code block, in a package of its own."""
    with sqlite_of_page.installed(tmp_path, sqlite_of_page.source(), monkeypatch) as module:
        yield module


@pytest.mark.soak
def test_the_sink_of_the_page_has_what_gold_has_and_is_filled_again(
    spark: SparkSession, lake_settings: Settings, sqlite: Any, tmp_path: Path
) -> None:
    table = replace(TABLE, export=replace(TABLE.export, sinks=("sqlite",)))
    made = Gold(
        spark, lake_settings.changed({"sinks": {"sqlite": {"file": str(tmp_path / "gold.sqlite")}}}), table
    )

    def there() -> list[tuple[str, int]]:
        with sqlite3.connect(tmp_path / "gold.sqlite") as database:
            count = "json_extract(message, '$.count')"
            return database.execute(f"SELECT key, {count} FROM gold ORDER BY key").fetchall()

    def differences() -> int:
        (check,) = check_store(
            made.lake, made.stream, table, sqlite.KIND, settings=made.settings, now=utc_now()
        )
        assert check.subject == "gold.metrics_1m → SQLite"
        return check.differences

    made.put(state("auth", 0), state("cart", 0))
    assert [one.result.written for one in made.run()] == [{"sqlite": 2}]
    made.put(state("auth", 0, count=2))
    made.take_away(state("cart", 0))
    assert [one.result.written for one in made.run()] == [{"sqlite": 2}]
    key = f"auth:latency:{int(state('auth', 0)['window_start'].timestamp()) * 1000}"
    assert there() == [(key, 2)]
    assert differences() == 0

    with sqlite3.connect(tmp_path / "gold.sqlite") as database:
        database.execute("UPDATE gold SET message = '{}'")
    assert differences() == 1
    (tmp_path / "gold.sqlite").unlink()
    made.run()
    assert (there(), differences()) == ([(key, 2)], 0)

    (tmp_path / "gold.sqlite").write_text("this is no database, whatever its name says")
    made.put(state("auth", 1))
    with pytest.raises(SinkTroubleError, match="SQLite cannot store the rows: file is not a database"):
        made.run()
