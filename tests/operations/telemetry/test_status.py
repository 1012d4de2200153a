"""`lakehouse status` for a lake that nobody runs, as a user sees it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse.cli.commands import status
from lakehouse.cli.main import app
from lakehouse.cli.reports.status import drawn
from lakehouse.common.terminal import Console
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.telemetry import QueryRun, Run, observe
from lakehouse.operations.telemetry.runs import as_json, file_of
from lakehouse.settings import Settings, load_settings
from tests.support import log_lakes as lakes
from tests.support import pipeline
from tests.support.served_lakes import ServedLake, letter
from tests.support.streams import TRANSACTIONS

NOW = pipeline.utc("2026-11-22T09:00:00")


def make_lake(directory: Path) -> Settings:
    """Return settings of a lake that has caught up, except for the exports, with an open dead letter."""
    settings = load_settings().changed(
        {
            "lake": str(directory / "lake"),
            "kafka.bootstrap_servers": "127.0.0.1:1",
            "home": directory / "home",
        }
    )
    lakes.caught_up(directory / "lake")
    ServedLake(settings).write_spec(DEAD_LETTERS, [letter(1, stream="transactions")])
    return settings


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings = make_lake(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(settings.home))
    monkeypatch.setenv("LAKEHOUSE_LAKE", settings.lake)
    monkeypatch.setenv("LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_status_as_json_is_the_whole_observation(lake: Path) -> None:
    del lake
    result = CliRunner().invoke(app, ["status", "--format", "json", "--stream", "transactions"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    (stream,) = found["streams"]
    assert found["broker_reason"].startswith("no Kafka broker at 127.0.0.1:1")
    assert [(lag["query"], lag["records"]) for lag in stream["layers"]] == [
        ("silver.transactions", 0),
        ("gold.user_transactions_5m", 0),
        ("export.user_transactions_5m", 5),
    ]
    assert stream["open_letters"] == 1


def test_status_once_prints_words_lags_and_tables(lake: Path) -> None:
    del lake
    result = CliRunner().invoke(app, ["status", "--once", "--stream", "transactions"])
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert any(line.startswith("transactions stopped 2026-11-22 08:12:39") for line in lines)
    assert "stream waits for source records seconds version done at" in lines
    assert "transactions bronze transactions-topic 0 ? ?" in lines
    assert "transactions silver.transactions bronze.transactions 0 0.0 s 2 2026-11-22 08:13:20" in lines
    assert any(line.startswith("transactions export.user_transactions_5m gold.") for line in lines)
    assert "silver.transactions 2 2026-11-22 08:13:20 38 2 3,800 2026-11-15 08:12:59" in lines


def test_status_in_a_pipe_is_printed_once(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del lake

    def stay(*_: object) -> None:
        raise AssertionError("it stays")

    monkeypatch.setattr(status, "_stay", stay)
    result = CliRunner().invoke(app, ["status", "--stream", "transactions"])
    assert result.exit_code == 0
    assert result.stdout.count("waits for") == 1


def lines_at(width: int, tmp_path: Path, *runs: Run) -> list[str]:
    """Return what a terminal of this width shows for one stream, without trailing spaces."""
    settings = make_lake(tmp_path)
    for run in runs:
        file = file_of(settings.home, run.host, run.pid)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(as_json(run))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(drawn(observe([TRANSACTIONS], settings, NOW), None, width))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_terminal_of_80_characters_gets_what_fits_into_its_lines(tmp_path: Path) -> None:
    assert lines_at(80, tmp_path) == [
        "2026-11-22 09:00:00 UTC",
        "no Kafka broker at 127.0.0.1:1 (nothing accepts connections there); start one",
        "with `lakehouse services up` or set kafka.bootstrap_servers",
        "(LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS)",
        "stream        health   since                    fresh  letters  gate",
        "transactions  stopped  2026-11-22 08:12:39  2,821.0 s        1",
        "  transactions: 5 rows of gold.user_transactions_5m wait for export; no process",
        "  runs it; the oldest has waited since 2026-11-22 08:12:39 UTC",
        "",
        "no process is running these streams",
        "",
        "waits for                    records    seconds  done at",
        "bronze (transactions-topic)        ?          ?",
        "silver.transactions                0      0.0 s  2026-11-22 08:13:20",
        "gold.user_transactions_5m          0      0.0 s  2026-11-22 08:13:40",
        "export.user_transactions_5m        5  2,841.0 s",
        "",
        "table                      version  committed            rows  files",
        "bronze.transactions              2  2026-11-22 08:13:00    42      4",
        "silver.transactions              2  2026-11-22 08:13:20    38      2",
        "gold.user_transactions_5m        2  2026-11-22 08:13:40     5      2",
    ]


def test_one_of_60_characters_gets_the_words_the_processes_and_the_numbers(tmp_path: Path) -> None:
    failing = QueryRun("gold.user_transactions_5m", error="OSError: the disk is full")
    run = Run(
        "elsewhere", 4711, ("gold",), ("transactions",), NOW - timedelta(hours=1), NOW, 9464, (failing,)
    )
    lines = lines_at(60, tmp_path, run)
    assert max(map(len, lines)) <= 60
    assert lines[4:16] == [
        "stream        health       fresh  letters  gate",
        "transactions  stopped  2,821.0 s        1",
        "  transactions: 5 rows of gold.user_transactions_5m wait for",
        "  export; no process runs it; the oldest has waited since",
        "  2026-11-22 08:12:39 UTC (since 2026-11-22 08:12:39)",
        "",
        "process  layers  started",
        "   4711  gold    2026-11-22 08:00:00",
        "  gold.user_transactions_5m fails: OSError: the disk is full",
        "",
        "waits for                    records    seconds",
        "bronze (transactions-topic)        ?          ?",
    ]


def test_status_as_json_says_which_processes_run_a_stream(tmp_path: Path) -> None:
    run = Run("elsewhere", 4711, ("gold",), ("transactions",), NOW, NOW, None, (QueryRun("gold.other"),))
    lines_at(80, tmp_path, run)
    settings = load_settings().changed({"lake": str(tmp_path / "lake"), "home": tmp_path / "home"})
    (state,) = observe([TRANSACTIONS], settings, NOW).as_json()["streams"]
    assert state["runs"] == [
        {
            "host": "elsewhere",
            "pid": 4711,
            "layers": ["gold"],
            "streams": ["transactions"],
            "started_at": "2026-11-22T09:00:00+00:00",
            "beat_at": "2026-11-22T09:00:00+00:00",
            "telemetry_port": None,
            "queries": [],
        }
    ]
