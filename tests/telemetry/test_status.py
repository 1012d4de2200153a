"""`lakehouse status` of a lake that nobody runs, as a user sees it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lakehouse.cli import app
from lakehouse.commands.status_report import drawn
from lakehouse.settings import load_settings
from lakehouse.streams import choose
from lakehouse.telemetry import QueryRun, Run, observe
from lakehouse.telemetry.runs import as_json, file_of
from tests import old_lakes, pipeline

NOW = pipeline.utc("2026-11-22T09:00:00")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings = old_lakes.unpack(load_settings(), tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_LAKE", settings.lake)
    monkeypatch.setenv("LAKEHOUSE_TOPICS", json.dumps(settings.topics))
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
        ("export.user_transactions_5m", 4),
    ]
    assert stream["open_letters"] == 3


def test_status_once_prints_words_lags_and_tables(lake: Path) -> None:
    del lake
    result = CliRunner().invoke(app, ["status", "--once", "--stream", "transactions"])
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert any(line.startswith("transactions stopped 2026-11-22 08:12:57") for line in lines)
    assert "transactions bronze transactions-topic-2026-11 0 ? ?" in lines
    assert "transactions silver.transactions bronze.transactions 0 0.0 s 1 2026-11-22 08:13:20" in lines
    assert "silver.transactions 2 2026-11-22 08:13:20 12 4 8,157 2026-11-13 10:11:40" in lines


def lines_at(width: int, tmp_path: Path, *runs: Run) -> list[str]:
    """Return what a terminal of the width shows of one stream, without blanks at the lines' ends."""
    settings = old_lakes.unpack(load_settings(), tmp_path).model_copy(
        update={"kafka_bootstrap_servers": "127.0.0.1:1", "home": tmp_path}
    )
    for run in runs:
        file = file_of(tmp_path, run.host, run.pid)
        file.parent.mkdir(exist_ok=True)
        file.write_text(as_json(run))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(drawn(observe(choose(["transactions"]), settings, NOW), width))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_terminal_of_80_characters_gets_what_fits_into_its_lines(tmp_path: Path) -> None:
    assert lines_at(80, tmp_path) == [
        "2026-11-22 09:00:00 UTC",
        "no Kafka broker at 127.0.0.1:1 (nothing accepts connections there); start one",
        "with `lakehouse services up` or set LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS",
        "stream        health   since                      fresh  letters  gate",
        "transactions  stopped  2026-11-22 08:12:57  168,500.0 s        3",
        "  transactions: 4 rows of gold.user_transactions_5m wait for",
        "  export.user_transactions_5m, which no process runs",
        "",
        "no process runs these streams",
        "",
        "waits for                            records    seconds  done at",
        "bronze (transactions-topic-2026-11)        ?          ?",
        "silver.transactions                        0      0.0 s  2026-11-22 08:13:20",
        "gold.user_transactions_5m                  0      0.0 s  2026-11-22 08:13:43",
        "export.user_transactions_5m                4  2,822.7 s",
        "",
        "table                      version  committed            rows  files",
        "bronze.transactions              2  2026-11-22 08:13:04    15      4",
        "silver.transactions              2  2026-11-22 08:13:20    12      4",
        "gold.user_transactions_5m        2  2026-11-22 08:13:43     4      2",
    ]


def test_one_of_60_characters_gets_the_words_the_processes_and_the_numbers(tmp_path: Path) -> None:
    failing = QueryRun("gold.user_transactions_5m", error="OSError: the disk is full")
    run = Run(
        "elsewhere", 4711, ("gold",), ("transactions",), NOW - timedelta(hours=1), NOW, 9464, (failing,)
    )
    lines = lines_at(60, tmp_path, run)
    assert max(map(len, lines)) <= 60
    assert lines[4:16] == [
        "stream        health         fresh  letters  gate",
        "transactions  stopped  168,500.0 s        3",
        "  transactions: 4 rows of gold.user_transactions_5m wait for",
        "  export.user_transactions_5m, which no process runs (since",
        "  2026-11-22 08:12:57)",
        "",
        "process  layers  started",
        "   4711  gold    2026-11-22 08:00:00",
        "  gold.user_transactions_5m fails: OSError: the disk is full",
        "",
        "waits for                            records    seconds",
        "bronze (transactions-topic-2026-11)        ?          ?",
    ]


def test_status_as_json_says_which_processes_run_a_stream(tmp_path: Path) -> None:
    run = Run("elsewhere", 4711, ("gold",), ("transactions",), NOW, NOW, None, (QueryRun("gold.other"),))
    lines_at(80, tmp_path, run)
    settings = load_settings().model_copy(update={"lake": str(tmp_path / "lake"), "home": tmp_path})
    (state,) = observe(choose(["transactions"]), settings, NOW).as_json()["streams"]
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
