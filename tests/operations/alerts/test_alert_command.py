"""`lakehouse alert`: a lake and a broker in, notifications out, each once, even if it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lakehouse.common.events import Kind
from lakehouse.engine.ops_tables.event_table import newest
from lakehouse.operations.alerts.publishing import read_state
from lakehouse.settings import Settings
from tests.support.alerting import RULES, fill
from tests.support.commands import run_command
from tests.support.pipeline import read_topic
from tests.support.settings import MakeSettings


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings({"alerts.topic": f"alerts-{uuid.uuid4().hex}"})


@pytest.fixture
def environment(settings: Settings, tmp_path: Path) -> dict[str, str]:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES, encoding="utf-8")
    return {
        "LAKEHOUSE_LAKE": settings.lake,
        "LAKEHOUSE_HOME": str(tmp_path / "home"),
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "LAKEHOUSE_ALERTS_TOPIC": settings.alerts.topic,
        "LAKEHOUSE_CONFIG": str(rules),
    }


def told(settings: Settings) -> list[dict[str, Any]]:
    records = read_topic(settings.kafka.bootstrap_servers, settings.alerts.topic)
    return [json.loads(record.value) for record in records]


def test_a_metric_over_its_threshold_fires_once_and_resolves(
    settings: Settings, environment: dict[str, str]
) -> None:
    hostile = "check\x1b[2J\x9b2J\u202e[red]out\n2026-11-26 00:00:00 INFO clean"
    fill(settings, {hostile: 95.0, "search": 12.0})
    fired = run_command(environment, "alert", "--once", "--format", "json")
    again = run_command(environment, "alert", "--once", "--format", "json")
    fill(settings, {hostile: 50.0, "search": 12.0})
    resolved = run_command(environment, "alert", "--once")

    assert [one.returncode for one in (fired, again, resolved)] == [0, 0, 0], fired.stderr
    first, last = told(settings)
    assert json.loads(fired.stdout) == first
    assert "check\\x1b[2J\\x9b2J\\u{202e}[red]out\\n2026-11-26" in resolved.stdout.splitlines()[-1]
    assert again.stdout == ""
    assert (first["status"], first["labels"]) == ("firing", {"metric": "cpu", "service": hostile})
    assert (first["value"], last["value"], last["status"]) == (95.0, 50.0, "resolved")
    assert first["alert_id"] == last["alert_id"]
    noted = newest(settings.lake, limit=10, kinds=[Kind.ALERT])
    assert [event.message.split(":")[0] for event in noted] == ["cpu fires", "cpu has resolved"]


@pytest.mark.soak
def test_killed_anywhere_it_neither_loses_nor_doubles_a_notification(
    settings: Settings, environment: dict[str, str]
) -> None:
    """Services rise above the threshold and fall below it while the process is killed at random times."""
    random, kills = Random(), 4
    fill(settings, {"a": 95.0, "b": 1.0})
    for _ in range(kills):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from lakehouse.cli.main import main; main()",
                "alert",
                "--interval",
                "0.1",
            ],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()  # from now on, it looks
        deadline = time.monotonic() + random.uniform(2, 6)
        while time.monotonic() < deadline:
            fill(settings, {"a": random.choice([1.0, 95.0]), "b": random.choice([1.0, 95.0])})
            time.sleep(random.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    fill(settings, {"a": 1.0, "b": 1.0})
    assert run_command(environment, "alert", "--once").returncode == 0

    messages = told(settings)
    assert max(Counter(one["event_id"] for one in messages).values()) == 1
    for service in ("a", "b"):
        statuses = [one["status"] for one in messages if one["labels"]["service"] == service]
        assert statuses == ["firing", "resolved"] * (len(statuses) // 2)
    firing = [one["alert_id"] for one in messages if one["status"] == "firing"]
    resolved = [one["alert_id"] for one in messages if one["status"] == "resolved"]
    assert sorted(firing) == sorted(resolved)
    assert len(firing) >= 2
    assert read_state(settings.kafka.access, settings.alerts.topic) == {}
