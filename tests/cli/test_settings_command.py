"""`lakehouse settings`: values with their origins, and a file to start from."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakehouse.cli.main import app
from lakehouse.common.errors import SettingsError
from lakehouse.settings import load_settings
from lakehouse.settings.keys import all_keys
from tests.support.settings import nothing_set

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory, in an environment that sets nothing."""
    return nothing_set(tmp_path, monkeypatch)


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
    assert found["redis.url"] == {"value": "redis://:***@cache:6379/0", "from": "LAKEHOUSE_REDIS_URL"}
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
    assert lines_of(shown.stdout)["alerts.webhooks"] == [
        '["https://example.org/***"]',
        "LAKEHOUSE_ALERTS_WEBHOOKS",
    ]


def lines_of(table: str) -> dict[str, list[str]]:
    """Return the other cells of each line by its first cell."""
    return {name: cells for name, *cells in (re.split(r" {2,}", line.strip()) for line in table.splitlines())}


@pytest.mark.parametrize(
    ("variable", "secret", "expected"),
    [
        ("REDIS_URL", "redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("REDIS_URL", "rediss://etl:hunter2@cache/0", "rediss://etl:***@cache/0"),
        ("REDIS_URL", "unix://:hunter2@/run/redis.sock?db=1", "unix://:***@/run/redis.sock?db=1"),
        ("REDIS_URL", "unix://:hunt/er2@/run/redis.sock", "***"),
        (
            "REDIS_URL",
            "redis+sentinel://:hunter2@a:1,[::1]:2/main/0?sentinel_username=u&sentinel_%70assword=hunter2",
            "redis+sentinel://:***@a:1,[::1]:2/main/0?sentinel_username=u&sentinel_%70assword=***",
        ),
        (
            "POSTGRES_URL",
            "postgresql://etl@db/lake?sslmode=require",
            "postgresql://etl@db/lake?sslmode=require",
        ),
        ("POSTGRES_URL", "postgresql://db/lake?password=hunter2", "postgresql://db/lake?password=***"),
        ("ALERTS_WEBHOOK_PROXY", "http://u:hunter2@proxy:3128", "http://u:***@proxy:3128"),
        ("ALERTS_WEBHOOK_SECRET", f"whsec_{'a' * 32}", "***"),
    ],
)
def test_of_a_secret_url_only_the_password_is_masked(
    monkeypatch: pytest.MonkeyPatch, variable: str, secret: str, expected: str
) -> None:
    monkeypatch.setenv(f"LAKEHOUSE_{variable}", secret)
    monkeypatch.setenv("COLUMNS", "300")

    shown = RUNNER.invoke(app, ["settings"])

    assert [expected, f"LAKEHOUSE_{variable}"] in lines_of(shown.stdout).values()


@pytest.mark.parametrize("options", [[], ["--format", "json"]])
def test_a_date_of_the_file_is_shown(directory: Path, options: list[str]) -> None:
    (directory / "lakehouse.toml").write_text("[streams.sales]\nearliest_event_time = 2020-01-01\n")

    shown = RUNNER.invoke(app, ["settings", *options])

    assert shown.exit_code == 0
    assert "2020-01-01" in shown.stdout


def test_what_is_not_set_is_a_dash_or_what_that_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")

    lines = lines_of(RUNNER.invoke(app, ["settings"]).stdout)

    assert lines["only_streams"] == ["all", "default"]
    assert lines["kafka.ssl_ca"] == ["the system's", "default"]
    assert lines["alerts.rules"] == ["those in docs/alerts.md", "default"]
    for name in (
        "topics",
        "streams",
        "http_hosts",
        "postgres.url",
        "maintenance.keep_rows",
        "alerts.in_gold",
    ):
        assert lines[name] == ["-", "default"]


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
    monkeypatch.setenv("COLUMNS", "500")

    shown = RUNNER.invoke(app, ["settings"])

    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("streams."))
    assert line.split() == ["streams.metrics.gold.metrics_1m.emit", "final", f"{directory}/lakehouse.toml"]


def test_a_key_of_a_table_that_a_variable_and_the_file_change_has_its_own_origin(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "lakehouse.toml").write_text("[streams.sales]\nthreshold = 2500\nnotify = 'every_update'\n")
    monkeypatch.setenv("LAKEHOUSE_STREAMS", '{"sales": {"threshold": 3000}}')
    monkeypatch.setenv("COLUMNS", "500")

    lines = lines_of(RUNNER.invoke(app, ["settings"]).stdout)

    assert lines["streams.sales.threshold"] == ["3000", "LAKEHOUSE_STREAMS"]
    assert lines["streams.sales.notify"] == ["every_update", f"{directory}/lakehouse.toml"]
