"""docs/tutorial.md runs as typed, and prints what it shows. It starts its own Kafka and Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.settings import load_settings
from lakehouse.streams.registry import choose_one
from lakehouse.streams.window_lengths import Calendar
from tests.support.commands import run_command
from tests.support.processes import ROOT
from tests.support.recipes import COMMAND, Shell, blocks_of

BEFORE_SPARK, LATER = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").split("\n## Try it\n")
ENVIRONMENT = {"COLUMNS": "300"}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert run_command(ENVIRONMENT, "services", "down").returncode == 0


def test_the_file_becomes_a_stream_and_each_change_of_it_is_valid(directory: Path) -> None:
    shell = Shell(directory, ENVIRONMENT, spark=None)
    shell.run_blocks(blocks_of(BEFORE_SPARK))
    (table,) = choose_one("weather", load_settings()).tables
    assert (table.name, table.window) == ("weather_day", Calendar("day", "UTC"))

    for language, text in blocks_of(LATER):
        if language == "sh":
            shell.run_blocks([("sh", COMMAND.sub("", text))])
            settings = load_settings()
            stream = choose_one("weather", settings)

    (table,), (source,) = stream.tables, stream.sources
    assert (table.name, table.window) == ("weather_day", Calendar("day", "UTC"))
    assert source.contract.event_time_zone == "America/New_York"
    assert [rule["name"] for rule in settings.streams["weather"]["rules"]] == ["too_fast"]
    assert len(Path("bad.jsonl").read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.soak
def test_the_tutorial_prints_what_it_shows(directory: Path, nameless: SparkSession) -> None:
    Shell(directory, ENVIRONMENT, nameless).run_blocks(blocks_of(f"{BEFORE_SPARK}\n{LATER}"))
