"""A broker goes down and comes back while alerts fire: each is in the topic once and reaches the webhook."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from lakehouse.settings import load_settings
from tests.chaos.services import OwnServices
from tests.operations.alerts.receiver import Receiver, receiving
from tests.support.alerting import RULES, fill
from tests.support.pipeline import read_topic
from tests.support.processes import LAKEHOUSE, running

ROUNDS = (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)
AWAY_S = 5.0  # several looks


def has_got(webhook: Receiver, count: int) -> bool:
    return len({key for key, _ in webhook.got}) == count


@pytest.mark.soak
def test_what_began_and_ended_while_the_broker_was_away_is_told_once_it_is_back(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    settings = load_settings().changed({"lake": str(tmp_path / "lake")})
    fill(settings, {"a": 95.0, "b": 1.0})
    with OwnServices(tmp_path / "home") as services, receiving() as webhook:
        environment = {
            **os.environ,
            "LAKEHOUSE_HOME": str(tmp_path / "home"),
            "LAKEHOUSE_LAKE": settings.lake,
            "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": services.endpoints.kafka,
            "LAKEHOUSE_CONFIG": str(tmp_path / "rules.toml"),
            "LAKEHOUSE_ALERTS_WEBHOOKS": json.dumps([webhook.url]),
            "PYTHONPATH": str(Path(__file__).parents[3]),
        }
        command = [LAKEHOUSE, "alert", "--interval", "0.5", "--format", "json"]
        with running(command, environment, tmp_path / "alert") as process:
            process.await_(lambda: len(webhook.got) == 1)
            firing, quiet = "a", "b"
            for number, how in enumerate(ROUNDS, 1):
                services.end("kafka", how)
                fill(settings, {firing: 1.0, quiet: 95.0})
                time.sleep(AWAY_S)
                services.start()
                process.await_(partial(has_got, webhook, 1 + 2 * number))
                firing, quiet = quiet, firing
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait() == 0
        records = read_topic(services.endpoints.kafka, "lakehouse-alerts")

    told = [json.loads(record.value) for record in records]
    assert [(one["labels"]["service"], one["status"]) for one in told] == [
        ("a", "firing"),
        ("a", "resolved"),
        ("b", "firing"),
        ("b", "resolved"),
        ("a", "firing"),
        ("a", "resolved"),
        ("b", "firing"),
    ]
    assert set(Counter(one["event_id"] for one in told).values()) == {1}
    assert dict(webhook.got) == {one["event_id"]: one for one in told}
