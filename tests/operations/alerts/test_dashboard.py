"""The dashboard is what its code generates; it and the rules ask only for exported metrics and labels."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lakehouse.common.errors import StoreWord
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.layers.step import BatchResult
from lakehouse.engine.runtime.runner import BatchDone
from lakehouse.operations.alerts.beats import BeatCollector, Beats
from lakehouse.operations.alerts.facts import Facts, Window
from lakehouse.operations.alerts.prometheus import RuleValues
from lakehouse.operations.alerts.rules import MetricRule
from lakehouse.operations.telemetry import ObservationCollector, Observer, Word
from lakehouse.operations.telemetry.driver import DriverMetrics
from lakehouse.serving.telemetry import ServerMetrics
from lakehouse.settings import Settings
from lakehouse.sinks.registry import labels
from tests.support.observed import AT, OBSERVATION
from tests.support.streams import STREAMS

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docker" / "grafana" / "dashboards" / "lakehouse.json"
RULES = ROOT / "docker" / "prometheus" / "rules.yml"
SELECTOR = re.compile(r"\b(lakehouse[a-z0-9_:]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
LEGEND = re.compile(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}")
Exported = dict[str, dict[str, set[str]]]
"""The names of metrics, with the values of each label."""


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    path = ROOT / "docker" / "grafana" / "make_dashboard.py"
    spec = importlib.util.spec_from_file_location("make_dashboard", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return what the processes export: a run, a server, and `lakehouse alert`."""
    settings = Settings().changed({"lake": str(tmp_path_factory.mktemp("lake"))})
    run = DriverMetrics(STREAMS, labels(settings))
    for query in ("silver.metrics_events", "export.metrics_1m"):
        written, seconds = {"dead_letters": 1}, {"kafka": 0.1, "redis": 0.1, "postgres": 0.1}
        run.on_batch(BatchDone(query, 1, BatchResult(2, written, seconds, refused=1), 0.5))
        run.on_phases(query, {"plan": 5, "process": 5})
        run.on_failure(query, "the disk is full")
        run.on_restart(query)
    observer = Observer([], settings)
    server = ServerMetrics(observer)
    server.count({"type": "http", "method": "GET"}, 200, 0.1)
    others = CollectorRegistry()
    others.register(ObservationCollector(lambda: OBSERVATION))
    rule = MetricRule(name="cpu", kind="metric", metric="cpu", over=90, windows=1)
    windows = [Window("checkout", AT - timedelta(minutes=1), 91.0)]
    others.register(RuleValues([rule], lambda: Facts(OBSERVATION, {"cpu": windows})))
    others.register(BeatCollector(Beats(settings.kafka.access, "alerts"), lambda: OBSERVATION))
    found: Exported = defaultdict(lambda: defaultdict(set))
    for registry in (run.registry, server.registry, others):
        text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
        for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
            found[family.name].update({})
            for sample in family.samples:
                found[sample.name].update({})
                for label, value in sample.labels.items():
                    found[sample.name][label].add(value)
    observer.close()
    return found


def rules() -> Iterator[tuple[str, str]]:
    """Yield the expression of each rule for Prometheus, and its summary."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        for one in group["rules"]:
            yield one["expr"], one.get("annotations", {}).get("summary", "")


def recorded() -> set[str]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {one["record"] for group in groups for one in group["rules"] if "record" in one}


def queries() -> Iterator[tuple[str, str]]:
    """Yield the expression and the legend of each query of the dashboard."""
    for panel in json.loads(FILE.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"], target.get("legendFormat", "")


def wrong(expression: str, legend: str, exported: Exported) -> Iterator[str]:
    """Yield each name of a metric or label, and each label's value, that nothing exports."""
    names = set[str]()
    for name, matchers in SELECTOR.findall(expression):
        known = {"stream": set[str]()} if name in recorded() else exported.get(name)
        if known is None:
            yield f"no metric {name}"
            continue
        names |= known.keys()
        for label, operator, value in MATCHER.findall(matchers):
            if label not in known:
                yield f"{name} has no label {label}"
            values = value.split("|") if operator == "=~" else [value]
            there = known.get(label, set()) | (set(LAYERS) if label == "layer" else set())
            yield from (f"no {label} {one}" for one in values if "$" not in one and one not in there)
    grouped = {one.strip() for found in GROUPED.findall(expression) for one in found.split(",")}
    yield from (f"no label {one} in {expression}" for one in grouped - names)
    shown = set(LEGEND.findall(legend)) - {"value"}
    yield from (f"no label {one} for {legend}" for one in shown - (grouped or names))


def test_the_committed_dashboard_is_what_the_code_makes(maker: ModuleType) -> None:
    assert FILE.read_text(encoding="utf-8") == maker.make()


def test_every_query_asks_for_metrics_labels_and_values_that_are_exported(exported: Exported) -> None:
    asked = [*queries(), *rules()]
    assert len([*queries()]) == 26
    assert [one for expression, legend in asked for one in wrong(expression, legend, exported)] == []
    assert exported["lakehouse_health"]["word"] == {word.value for word in Word}
    assert exported["lakehouse_store_state"]["word"] == {word.value for word in StoreWord}


def test_the_dashboard_shows_everything_that_makes_a_streams_health() -> None:
    asked = {name for expression, _ in queries() for name, _ in SELECTOR.findall(expression)}
    assert asked >= {
        "lakehouse_up",
        "lakehouse_health",
        "lakehouse_store_state",
        "lakehouse_layer_processes",
        "lakehouse_lag_records",
        "lakehouse_layer_lag_seconds",
        "lakehouse_freshness_seconds",
        "lakehouse_refused_ratio",
        "lakehouse_dead_letters_open",
        "lakehouse_gate_open",
        "lakehouse_audit_clean",
        "lakehouse_alerts_evaluated",
        "lakehouse_query_failures_total",
    }


@pytest.mark.parametrize(
    ("expression", "legend", "expected"),
    [
        ("max by (stream) (lakehouse_lag_record)", "", "no metric lakehouse_lag_record"),
        ('lakehouse_health{word="stoped"} == 1', "", "no word stoped"),
        ('lakehouse_up{stream="a"}', "", "lakehouse_up has no label stream"),
        ("max by (table) (lakehouse_health)", "", "no label table in max by (table) (lakehouse_health)"),
        ("max by (stream) (lakehouse_health)", "{{word}}", "no label word for {{word}}"),
    ],
)
def test_a_misspelt_name_is_found(exported: Exported, expression: str, legend: str, expected: str) -> None:
    assert expected in [*wrong(expression, legend, exported)]
