"""Every command on a lake of all streams on S3: it finds and does the same as on a disk."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lakehouse.dev.samples.loads import GENERATORS, Load, send
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.ops_tables.event_table import newest
from lakehouse.settings import Settings
from tests.support.processes import ROOT, Place, place
from tests.support.seaweed import reach, settings_of
from tests.support.streams import STREAMS

EVENTS = 60
MALFORMED = 0.1
LONG_S = 3000.0
TABLES = {
    "metrics": ("metrics_events", "metrics_1m"),
    "calls": ("call_analytics", "call_records"),
    "sales": ("sales_events", "product_sales"),
    "transactions": ("transactions", "user_transactions_5m"),
}
BALANCE = """
SELECT (SELECT count(*) FROM bronze.{0}) - (SELECT count(*) FROM silver.{0})
     - (SELECT count(*) FROM silver.dead_letters WHERE job = 'silver.{0}') AS missing,
       (SELECT count(*) FROM bronze.{0}) AS landed
"""


@pytest.fixture
def here(services: Endpoints, session_settings: Settings, tmp_path: Path) -> Any:
    with place(tmp_path / "home", services, database=13) as made:
        settings = session_settings.changed(
            {"kafka.bootstrap_servers": services.kafka, "topics": made.topics}
        )
        for stream in GENERATORS:
            assert send(Load(stream, EVENTS, seed=1, malformed=MALFORMED), settings).failed == 0
        yield made


def done(environment: dict[str, str], *commands: tuple[str, ...]) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.storage.s3.commands", json.dumps(commands)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(commands), ended.stdout + ended.stderr
    return found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_streams_run_there_and_every_command_finds_the_lake(
    store: str, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"commands-{uuid.uuid4().hex}"
    environment = here.environment | settings_of(store, prefix)
    source, gold = TABLES["metrics"]
    duck = ("sql", BALANCE.format(source), "--engine", "duckdb", "--format", "json")
    ran, audited, status, by_spark, by_duck, checked, silver, again, kept, last, small = done(
        environment,
        ("run", "all", "--trigger", "available-now"),
        ("audit", "--format", "json"),
        ("status", "--once", "--format", "json"),
        ("sql", BALANCE.format(source), "--format", "json"),
        duck,
        ("expect", "--format", "json"),
        ("rebuild", "silver", "--stream", "metrics"),
        ("rebuild", "gold"),
        ("maintain",),
        ("audit", "--format", "json"),
        ("upkeep", f"gold.{gold}"),
    )
    for report in (audited, last):
        checks = json.loads(report["stdout"])["checks"]
        assert {check["stream"] for check in checks} == {stream.name for stream in STREAMS}
        assert [check for check in checks if check["differences"]] == []
    for one in (ran, audited, status, by_spark, by_duck, checked, silver, again, kept, last):
        assert one["code"] == 0, one
    assert (
        json.loads(by_spark["stdout"]) == json.loads(by_duck["stdout"]) == [{"missing": 0, "landed": EVENTS}]
    )
    states = {one["name"]: one for one in json.loads(status["stdout"])["streams"]}
    assert {name: one["health"]["word"] for name, one in states.items()} == dict.fromkeys(TABLES, "idle")
    assert {lag["records"] for one in states.values() for lag in (*one["partitions"], *one["layers"])} == {0}

    assert small["removed"][0] == small["removed"][1] > 0
    assert small["removed"][2] == 0
    assert sorted(small["files"]) == sorted(small["named"])
    assert small["commits"]
    assert f"{0:020}.json" not in small["commits"]

    reach(store, monkeypatch)
    kinds = Counter(event.kind for event in newest(environment["LAKEHOUSE_LAKE"], limit=1000))
    assert kinds["audit"] == 2 * len(STREAMS)
    assert kinds["start"] == len(STREAMS)
    assert kinds["failure"] == 0
