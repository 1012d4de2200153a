"""The sink in docs/sinks.md works as described, with one file and one line in the registry."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import sys
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
from lakehouse.sinks import registry
from tests.sinks.gold_rows import TABLE, Gold, state

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"


@pytest.fixture
def sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the sink from the page's code block, in its own file and in the registry."""
    (text,) = re.findall(
        r"^```python sink\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    path = tmp_path / "sink_of_the_page.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    monkeypatch.setattr(registry, "SINKS", (*registry.SINKS, module.KIND))
    yield module
    del sys.modules[module.__name__]


def test_the_sink_of_the_page_has_what_gold_has_and_is_filled_again(
    spark: SparkSession, lake_settings: Settings, sqlite: Any, tmp_path: Path
) -> None:
    table = replace(TABLE, export=replace(TABLE.export, sinks=("sqlite",)))
    made = Gold(spark, lake_settings.changed({"home": tmp_path}), table)

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
    with pytest.raises(SinkTroubleError, match="SQLite cannot store the rows: file is not a database"):
        made.run()
