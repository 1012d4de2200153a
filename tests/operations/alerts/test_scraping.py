"""A real Prometheus scrapes what telemetry exposes, and the rules fire in it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from lakehouse.operations.alerts.prometheus import rules_file
from lakehouse.operations.alerts.rules import load_rules
from lakehouse.operations.telemetry import (
    Health,
    Observation,
    ObservationCollector,
    StreamGate,
    StreamState,
    Word,
)
from lakehouse.settings.alerts import AlertsSettings
from tests.support.pipeline import await_
from tests.support.streams import STREAMS

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def closed(name: str, age_s: float) -> StreamState:
    gate = StreamGate(is_open=False, changed_at=NOW, reasons=("too few rows",))
    return StreamState(name, Health(Word.BLOCKED, ""), (), (), (), (), (), 0, gate, NOW, age_s)


@pytest.mark.soak
def test_prometheus_scrapes_two_processes_and_an_alert_fires_once(tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is missing: scripts/prometheus.sh installs it"
    seen = Observation(NOW, (closed("sales", 100_000.0),))
    servers, targets = [], []
    for _ in range(2):
        registry = CollectorRegistry()
        registry.register(ObservationCollector(lambda: seen))
        server, thread = start_http_server(0, "127.0.0.1", registry)
        servers.append((server, thread))
        targets.append(f"127.0.0.1:{server.server_port}")
    rules = rules_file(load_rules(AlertsSettings(), [stream.name for stream in STREAMS]))
    (tmp_path / "rules.yml").write_text(rules, encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "lakehouse", "static_configs": [{"targets": targets}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen([program, *options], cwd=tmp_path, stdout=log, stderr=log)

    def firing() -> list[tuple[str, str]]:
        try:
            with urllib.request.urlopen(f"http://{address}/api/v1/alerts", timeout=5) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["alerts"]
        except OSError:
            return []
        return sorted(
            (one["labels"]["alertname"], one["labels"]["stream"]) for one in found if one["state"] == "firing"
        )

    try:
        await_(lambda: firing() == [("gate", "sales"), ("stale", "sales")])
    finally:
        process.terminate()
        process.wait()
        log.close()
        for server, thread in servers:
            server.shutdown()
            thread.join()
