"""The alerting rules as Prometheus rules: promtool accepts them, and they fire as they should."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse.operations.alerts.prometheus import rules_file
from lakehouse.operations.alerts.rules import load_rules
from lakehouse.settings.alerts import AlertsSettings
from tests.support.commands import run_command
from tests.support.streams import STREAMS

NAMES = [stream.name for stream in STREAMS]
COMMITTED = Path(__file__).parents[3] / "docker" / "prometheus" / "rules.yml"


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: scripts/prometheus.sh installs it"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yml"
    path.write_text(rules_file(load_rules(AlertsSettings(), NAMES)), encoding="utf-8")
    return path


def test_promtool_accepts_the_rules_and_yaml_reads_them(rules: Path) -> None:
    promtool("check", "rules", str(rules))
    groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    assert [group["name"] for group in groups] == ["lakehouse", "lakehouse in gold", "lakehouse telemetry"]
    assert [one["alert"] for one in groups[0]["rules"]] == [
        "lag",
        "unread-records",
        "standing-still",
        "refusing",
        "failing",
        "store",
        "stale",
        "dead-letters",
        "gate",
        "audit",
    ]


def test_the_committed_file_is_what_the_command_prints() -> None:
    printed = run_command({}, "alert", "--prometheus").stdout
    assert COMMITTED.read_text(encoding="utf-8") == printed


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    shown = ", ".join(f"{label}={json.dumps(value)}" for label, value in labels.items())
    return {"series": f"{name}{{{shown}}}", "values": values}


def alerts_at(at: str, name: str, *labels: dict[str, str]) -> dict[str, Any]:
    return {"eval_time": at, "alertname": name, "exp_alerts": [{"exp_labels": one} for one in labels]}


def test_the_rules_fire_when_they_should_and_not_before(rules: Path, tmp_path: Path) -> None:
    sales = {"stream": "sales", "severity": "warning"}
    source = {"topic": "t", "partition": "0"}
    silver = {"stream": "sales", "layer": "silver", "table": "sales_events"}
    redis = {"stream": "sales", "table": "product_sales", "store": "redis"}
    given = [
        series(
            "lakehouse_layer_lag_seconds",
            "0x4 130+60x10",
            stream="sales",
            layer="gold",
            table="a",
            source="b",
        ),
        series("lakehouse_layer_lag_seconds", "0x20", stream="sales", layer="silver", table="a", source="b"),
        series("lakehouse_lag_records", "600000x20", stream="calls", **source),
        series("lakehouse_lag_records", "600000x20", stream="calls", topic="t", partition="1"),
        # Two processes see the same records, which count once.
        series("lakehouse_lag_records", "900000x20", stream="sales", **source, instance="silver:9464"),
        series("lakehouse_lag_records", "900000x20", stream="sales", **source, instance="gold:9464"),
        series("lakehouse_freshness_seconds", "86399+1x20", stream="sales"),
        series("lakehouse_gate_open", "1x3 0x10", stream="sales"),
        series("lakehouse_records_total", "0+600x20", **silver),
        series("lakehouse_records_written_total", "0+120x20", **silver, outcome="dead_letters"),
        series("lakehouse_up", "1x5 0x10", what="broker"),
        series("lakehouse_health", "0x4 1x10", stream="sales", word="stopped", instance="silver:9464"),
        series("lakehouse_health", "0x4 1x10", stream="sales", word="stopped", instance="alert:9464"),
        series("lakehouse_health", "1x20", stream="calls", word="behind"),
        series("lakehouse_health", "0x4 1x10", stream="metrics", word="refusing"),
        series("lakehouse_health", "0x4 1x10", stream="calls", word="failing"),
        series("lakehouse_audit_clean", "1x4 0x10", stream="sales"),
        series("lakehouse_store_state", "0x4 1x10", **redis, word="full", instance="export:9464"),
        series("lakehouse_store_state", "0x4 1x10", **redis, word="full", instance="alert:9464"),
        series("lakehouse_store_state", "1x20", **redis | {"store": "kafka"}, word="well"),
    ]
    expected = [
        alerts_at("5m", "lag"),
        alerts_at("6m", "lag", sales),
        alerts_at("2m", "unread-records", {"stream": "calls", "severity": "warning"}),
        alerts_at("1m", "stale"),
        alerts_at("3m", "stale", sales),
        alerts_at("12m", "dead-letters", sales),
        alerts_at("3m", "gate"),
        alerts_at("4m", "gate", {"stream": "sales", "severity": "critical"}),
        alerts_at("5m", "standing-still"),
        alerts_at("6m", "standing-still", {"stream": "sales", "severity": "critical"}),
        alerts_at("4m", "refusing"),
        alerts_at("5m", "refusing", {"stream": "metrics", "severity": "warning"}),
        alerts_at("6m", "failing"),
        alerts_at("7m", "failing", {"stream": "calls", "severity": "warning"}),
        alerts_at("4m", "audit"),
        alerts_at("5m", "audit", {"stream": "sales", "severity": "critical"}),
        alerts_at("6m", "store"),
        alerts_at("7m", "store", {**redis, "severity": "warning"}),
        alerts_at("8m", "LakehouseCannotBeSeen", {"what": "broker", "severity": "critical"}),
    ]
    check(rules, tmp_path, given, expected)


def test_the_budget_of_gold_burns_by_two_windows(rules: Path, tmp_path: Path) -> None:
    """Late for 12 of 132 minutes, 9 times what 99 % allows; hours later, nothing burns any more."""
    given = [
        series("lakehouse_lag_seconds", "0x120 31x12 0x200", stream="calls", topic="t", partition="0"),
        series("lakehouse_lag_seconds", "30x400", stream="sales", topic="t", partition="0"),
    ]
    fast = {"stream": "calls", "severity": "critical", "window": "1h"}
    slow = fast | {"window": "6h"}
    name = "LakehouseInGoldBudgetBurns"
    found = [
        alerts_at("2h", name),
        alerts_at("132m", name, fast, slow, fast | {"severity": "warning", "window": "3d"}),
    ]
    check(rules, tmp_path, given, [*found, alerts_at("10h", name)])


CHOSEN = """
[[rules]]
name = "cpu"
kind = "metric"
metric = "cpu"
statistic = "p99"
over = 90
windows = 3

[[rules]]
name = "idle"
kind = "metric"
metric = "requests"
service = "checkout"
under = 0.5

[[rules]]
name = "audit-old"
kind = "audit_old"
seconds = 3600
"""


def test_rules_of_metrics_and_of_old_audits_fire_by_what_telemetry_says(tmp_path: Path) -> None:
    chosen, rules = AlertsSettings.model_validate(tomllib.loads(CHOSEN)), tmp_path / "rules.yml"
    rules.write_text(rules_file(load_rules(chosen, NAMES)), encoding="utf-8")
    cpu = {"rule": "cpu", "metric": "cpu", "statistic": "p99"}
    idle = {"rule": "idle", "metric": "requests", "statistic": "avg"}
    given = [
        series("lakehouse_metric_rule_value", "90x3 90.5x3 _x10", service="search", **cpu),
        series("lakehouse_metric_rule_value", "12x20", service="checkout", **cpu),
        series("lakehouse_metric_rule_value", "0.5x3 0.25x10", service="checkout", **idle),
        series("lakehouse_audit_age_seconds", "3480+60x20", stream="sales"),
        series("lakehouse_freshness_seconds", "5x20", stream="sales"),
        series("lakehouse_freshness_seconds", "_x4 5x20", stream="calls"),
    ]
    warning = {"severity": "warning"}
    sales, calls = ({"stream": name, **warning} for name in ("sales", "calls"))
    expected = [
        alerts_at("3m", "cpu"),
        alerts_at("4m", "cpu", {"service": "search", "metric": "cpu", **warning}),
        alerts_at("14m", "cpu"),
        alerts_at("3m", "idle"),
        alerts_at("4m", "idle", {"service": "checkout", "metric": "requests", **warning}),
        alerts_at("2m", "audit-old"),
        alerts_at("3m", "audit-old", sales),
        alerts_at("5m", "audit-old", sales, calls),
    ]
    check(rules, tmp_path, given, expected)


def check(rules: Path, directory: Path, given: list[dict[str, str]], expected: list[dict[str, Any]]) -> None:
    plain = yaml.safe_load(rules.read_text(encoding="utf-8"))
    for group in plain["groups"]:
        for one in group["rules"]:
            one.pop("annotations", None)  # texts that no test needs to repeat
    (directory / "plain.yml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    test = {
        "rule_files": ["plain.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "alert_rule_test": expected}],
    }
    (directory / "test.yml").write_text(yaml.safe_dump(test), encoding="utf-8")
    promtool("test", "rules", str(directory / "test.yml"))
