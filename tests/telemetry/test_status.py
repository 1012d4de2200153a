"""`lakehouse status` of a lake that nobody runs, as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse.cli import app
from lakehouse.settings import load_settings
from tests import old_lakes


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings = old_lakes.unpack(load_settings(), tmp_path)
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
    assert any(line.startswith("transactions stalled 2026-11-22 08:12:57") for line in lines)
    assert "transactions bronze bronze (transactions-topic-2026-11 0) ? ?" in lines
    assert (
        "transactions silver silver.transactions (bronze.transactions) 0 0.0 s 1 2026-11-22 08:13:20" in lines
    )
    assert "silver.transactions 2 2026-11-22 08:13:20 12 4 8,157 2026-11-13 10:11:40" in lines
