"""`lakehouse settings`: values with their origins, and a file to begin with."""

import json
import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse.cli.main import app
from lakehouse.common.errors import SettingsError
from lakehouse.settings import load_settings
from lakehouse.settings.keys import all_keys

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an environment that sets nothing."""
    for name in [name for name in os.environ if name.startswith("LAKEHOUSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_value_is_shown_with_its_origin(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "lakehouse.toml").write_text("[redis]\nttl = '90m'\n[run]\nmax_records = 5\n")
    home = directory / ".lakehouse"
    home.mkdir()
    (home / "services.json").write_text('{"kafka": {"endpoint": "127.0.0.1:19092"}}')
    monkeypatch.setenv("LAKEHOUSE_RUN_MAX_RECORDS", "7")
    monkeypatch.setenv("LAKEHOUSE_REDIS_URL", "redis://:hunter2@cache:6379/0")

    shown = RUNNER.invoke(app, ["settings", "--format", "json"])

    assert shown.exit_code == 0
    assert "hunter2" not in shown.output
    found = json.loads(shown.stdout)
    assert found["redis.ttl"] == {"value": "1h30m", "from": f"{directory}/lakehouse.toml"}
    assert found["run.max_records"] == {"value": 7, "from": "LAKEHOUSE_RUN_MAX_RECORDS"}
    assert found["redis.url"] == {"value": "***", "from": "LAKEHOUSE_REDIS_URL"}
    assert found["kafka.bootstrap_servers"] == {
        "value": "127.0.0.1:19092",
        "from": "the running local services",
    }
    assert found["run.max_bytes"] == {"value": "256MB", "from": "default"}
    assert found["maintenance.every"] == {"value": "1h", "from": "default"}
    assert found.keys() == all_keys().keys()


def test_the_table_masks_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_ALERTS_WEBHOOKS", '["https://example.org/hunter2"]')
    monkeypatch.setenv("COLUMNS", "200")

    shown = RUNNER.invoke(app, ["settings"])

    assert shown.exit_code == 0
    assert "hunter2" not in shown.output
    assert "alerts.webhooks" in shown.output


def test_the_file_that_init_writes_has_every_key_and_changes_nothing(directory: Path) -> None:
    before = load_settings()

    assert RUNNER.invoke(app, ["settings", "init"]).exit_code == 0

    text = (directory / "lakehouse.toml").read_text(encoding="utf-8")
    assert load_settings() == before
    assert 'ttl = "1d"' in text
    set_lines = [line.removeprefix("# ").removeprefix("e.g. ") for line in text.splitlines() if " = " in line]
    sections = [line for line in text.splitlines() if line.startswith("[")]
    assert len(set_lines) == sum(not key.is_secret for key in all_keys().values())
    assert "[redis]" in sections
    for line in set_lines:
        tomllib.loads(line)


def test_init_leaves_a_file_alone(directory: Path) -> None:
    (directory / "lakehouse.toml").write_text("grace_s = 5\n")

    refused = RUNNER.invoke(app, ["settings", "init"])

    assert isinstance(refused.exception, SettingsError)
    assert (directory / "lakehouse.toml").read_text() == "grace_s = 5\n"


def test_the_table_has_a_line_for_each_key_of_a_stream(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "lakehouse.toml").write_text("[streams.metrics.gold.metrics_1m]\nemit = 'final'\n")
    monkeypatch.setenv("COLUMNS", "200")

    shown = RUNNER.invoke(app, ["settings"])

    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("streams."))
    assert line.split() == ["streams.metrics.gold.metrics_1m.emit", "final", f"{directory}/lakehouse.toml"]
