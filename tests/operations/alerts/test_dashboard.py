"""The dashboard is what its code generates, and queries only metrics that exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docker" / "grafana" / "dashboards" / "lakehouse.json"
METRIC = re.compile(r"\blakehouse[_:][a-z0-9_:]+")

OF_A_RUN = {
    "lakehouse_records",
    "lakehouse_query_failures",
    "lakehouse_batch_duration_seconds",
    "lakehouse_kafka_write_seconds",
    "lakehouse_redis_write_seconds",
    "lakehouse_postgres_write_seconds",
}
"""What `lakehouse run` counts about itself."""
OF_A_SERVER = {"lakehouse_http_requests", "lakehouse_http_response_seconds"}


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    path = ROOT / "docker" / "grafana" / "make_dashboard.py"
    spec = importlib.util.spec_from_file_location("make_dashboard", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_dashboard_is_what_the_code_makes(maker: ModuleType) -> None:
    assert FILE.read_text(encoding="utf-8") == maker.make()


def test_every_panel_asks_for_metrics_that_telemetry_or_the_rules_have() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "lakehouse/operations/telemetry").glob("*.py")
    )
    declared = {f"lakehouse_{name}" for name in re.findall(r'\(\s*"([a-z_]+)",\s*"[A-Z1]', text)}
    rules = yaml.safe_load((ROOT / "docker/prometheus/rules.yml").read_text(encoding="utf-8"))
    recorded = {one["record"] for group in rules["groups"] for one in group["rules"] if "record" in one}
    panels = json.loads(FILE.read_text(encoding="utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    asked = {re.sub("_(total|bucket)$", "", name) for one in expressions for name in METRIC.findall(one)}
    assert len(expressions) == 20
    assert sorted(asked - declared - recorded - OF_A_RUN - OF_A_SERVER) == []
