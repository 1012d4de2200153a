"""/api/v1/settings: each value with its origin; secrets are masked."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from lakehouse.serving.app import make_app
from lakehouse.serving.security.access import Access
from lakehouse.serving.security.tokens import Scope, Tokens
from lakehouse.settings.reading import read
from lakehouse.settings.shown import every_single
from lakehouse.streams.builtin import TABLES
from lakehouse.streams.registry import load
from tests.support.settings import nothing_set

PATH = "/api/v1/settings"
FILE = """
[streams.sales]
threshold = 2500
notify = "every_update"
allowed_lateness = "1d"
[streams.sales.gold.product_sales]
sinks = ["redis"]
[maintenance.keep_rows]
"bronze.sales_events" = "30d"
"bronze.metrics_events" = "90d"
[topics]
sales-events-v1 = "shop.sales"
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory with a configuration file, and with two variables."""
    nothing_set(tmp_path, monkeypatch)
    (tmp_path / "lakehouse.toml").write_text(FILE, encoding="utf-8")
    monkeypatch.setenv("LAKEHOUSE_STREAMS", '{"sales": {"threshold": 3000}}')
    monkeypatch.setenv("LAKEHOUSE_REDIS_URL", "redis://:hunter2@cache:6379/0")
    monkeypatch.setenv("LAKEHOUSE_ALERTS_WEBHOOK_SECRET", f"whsec_{'a' * 32}")
    return tmp_path


def client_of(access: Access | None = None) -> TestClient:
    """Return a client of a server with the settings of the file and the environment."""
    reading = read()
    streams = load(reading.settings)
    shown = every_single(reading, {one.name: TABLES.get(one.name, {}) for one in streams})
    app = make_app(reading.settings, streams, access or Access(None), shown=shown)
    return TestClient(app, base_url="http://localhost:8080")


def test_a_streams_settings_are_its_own_then_those_of_its_topics_tables_and_stores(directory: Path) -> None:
    found = client_of().get(f"{PATH}?stream=sales")

    assert found.status_code == 200
    rows = {one["key"]: (one["value"], one["from"]) for one in found.json()["settings"]}
    file = f"{directory}/lakehouse.toml"
    assert rows["streams.sales.threshold"] == (3000, "LAKEHOUSE_STREAMS")
    assert rows["streams.sales.notify"] == ("every_update", file)
    assert rows["streams.sales.gold.product_sales.sinks"] == (["redis"], file)
    assert rows["streams.sales.topic"] == ("sales-events-v1", "default")
    assert rows["topics.sales-events-v1"] == ("shop.sales", file)
    assert rows["maintenance.keep_rows.bronze.sales_events"] == ("30d", file)
    assert rows["redis.url"] == ("redis://:***@cache:6379/0", "LAKEHOUSE_REDIS_URL")
    assert rows["run.max_bytes"] == ("256MB", "default")
    assert rows["stream_defaults.future_tolerance"] == ("5m", "default")
    others = {"stream_defaults.allowed_lateness", "maintenance.keep_rows.bronze.metrics_events", "lake"}
    assert others & rows.keys() == set()
    own = [key.startswith("streams.sales.") for key in rows]
    assert own == sorted(own, reverse=True)
    assert not any(key.startswith(("streams.metrics", "postgres")) for key in rows)


@pytest.mark.usefixtures("directory")
def test_all_settings_are_listed_and_no_secret_is() -> None:
    client = client_of()
    found = client.get(PATH)
    rows = {one["key"]: one["value"] for one in found.json()["settings"]}
    assert not any(secret in found.text for secret in ("hunter2", "whsec"))
    assert rows["alerts.webhook_secret"] == "*" * 3
    assert (rows["streams.metrics.grace"], rows["schema_registry.password"]) == ("1m", "")
    first = client.get(f"{PATH}?limit=3").json()
    rest = client.get(f"{PATH}?cursor={first['next']}").json()
    assert [one["key"] for one in (*first["settings"], *rest["settings"])] == list(rows)
    refused = client.get(f"{PATH}?stream=slaes")
    assert refused.json()["detail"] == "stream: no stream 'slaes': did you mean sales?"
    assert client.get(f"{PATH}?cursor={first['next']}&stream=sales").status_code == 400


def test_times_and_infinite_numbers_of_the_file_are_text(directory: Path) -> None:
    (directory / "lakehouse.toml").write_text(
        "[streams.sales]\nearliest_event_time = 2020-01-01\n"
        "[sinks.http]\nsince = 2026-01-01T00:00:00Z\nlimit = inf\nat = [09:30:00, { no = nan }]\n"
    )
    rows = {one["key"]: one["value"] for one in client_of().get(PATH).json()["settings"]}
    assert rows["streams.sales.earliest_event_time"] == "2020-01-01"
    assert (rows["sinks.http.since"], rows["sinks.http.limit"]) == ("2026-01-01T00:00:00Z", "inf")
    assert rows["sinks.http.at"] == ["09:30:00", {"no": "nan"}]


@pytest.mark.usefixtures("directory")
def test_settings_need_a_token_like_rows() -> None:
    tokens = Tokens(read().settings.home)
    headers = {"Authorization": f"Bearer {tokens.add('ada', [Scope.READ])}"}
    client = client_of(Access(tokens))
    assert client.get(PATH).status_code == 401
    assert client.get(PATH, headers=headers).status_code == 200


def test_a_table_that_names_an_unknown_store_is_reported(directory: Path) -> None:
    (directory / "lakehouse.toml").write_text("[streams.sales.gold.product_sales]\nsinks = ['reids']\n")
    found = client_of().get(f"{PATH}?stream=sales")
    assert found.status_code == 503
    assert found.json()["detail"].startswith("gold.product_sales: unknown sinks: reids; known sinks: ")
