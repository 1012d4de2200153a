"""What a scraper gets: text parsed by another library, and probes answered over HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lakehouse.common.errors import ServiceError
from lakehouse.engine.layers.step import BatchResult
from lakehouse.engine.runtime.runner import BatchDone
from lakehouse.operations.alerts.facts import Facts, Window
from lakehouse.operations.alerts.prometheus import RuleValues
from lakehouse.operations.alerts.rules import MetricRule
from lakehouse.operations.telemetry import (
    Observation,
    ObservationCollector,
    Word,
)
from lakehouse.operations.telemetry.driver import DriverMetrics
from lakehouse.operations.telemetry.server import Readiness, serving
from lakehouse.operations.telemetry.words import WHAT_TO_DO
from lakehouse.settings import Settings
from lakehouse.sinks.registry import labels
from tests.support.observed import AT, OBSERVATION
from tests.support.streams import STREAMS

Sample = tuple[str, tuple[tuple[str, str], ...], float]


def samples_of(registry: CollectorRegistry) -> set[Sample]:
    """Return what the registry exposes, as parsed by the OpenMetrics parser, without creation times."""
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    return {
        (sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_an_observation_is_exposed_without_what_is_not_known() -> None:
    registry = CollectorRegistry()
    registry.register(ObservationCollector(lambda: OBSERVATION))
    stream = ("stream", "sales")
    silver = (("layer", "silver"), ("source", "bronze.sales_events"), stream, ("table", "sales_events"))
    gold = (("layer", "gold"), stream, ("table", "product_sales"))
    table, source = (stream, ("table", "gold.product_sales")), (stream, ("table", "silver.sales_events"))
    partition = (("partition", "0"), stream, ("topic", "sales"))
    export = (("layer", "export"), stream, ("table", "product_sales"))
    store = (("store", "redis"), stream, ("table", "product_sales"))
    words: set[Sample] = {
        ("lakehouse_health", (stream, ("word", word.value)), float(word == "blocked")) for word in Word
    }
    words |= {
        ("lakehouse_store_state", (*store, ("word", word)), float(word == "full"))
        for word in ("well", "unknown", "behind", "full", "refused", "away")
    }
    assert samples_of(registry) == words | {
        ("lakehouse_up", (("what", "lake"),), 1.0),
        ("lakehouse_up", (("what", "broker"),), 0.0),
        ("lakehouse_lag_records", partition, 7.0),
        ("lakehouse_lag_seconds", partition, 1.5),
        ("lakehouse_layer_lag_records", silver, 0.0),
        ("lakehouse_layer_lag_seconds", silver, 0.0),
        ("lakehouse_freshness_seconds", (stream,), 0.25),
        ("lakehouse_event_time_seconds", source, 86400.0),
        ("lakehouse_watermark_seconds", source, 10.0),
        ("lakehouse_table_version", table, 4.0),
        ("lakehouse_table_files", table, 2.0),
        ("lakehouse_table_size_bytes", table, 300.0),
        ("lakehouse_table_committed_seconds", table, 86400.0),
        ("lakehouse_query_version", gold, 4.0),
        ("lakehouse_query_done_seconds", gold, 86400.0),
        ("lakehouse_dead_letters_open", (stream,), 2.0),
        ("lakehouse_refused_ratio", source, 0.25),
        ("lakehouse_refused_over_limit", source, 1.0),
        ("lakehouse_gate_open", (stream,), 0.0),
        ("lakehouse_audit_clean", (stream,), 0.0),
        ("lakehouse_audit_age_seconds", (stream,), 3600.0),
        ("lakehouse_layer_processes", (("layer", "gold"), stream), 1.0),
        ("lakehouse_layer_processes", (("layer", "export"), stream), 0.0),
        ("lakehouse_query_version", export, 4.0),
        ("lakehouse_query_done_seconds", export, 86400.0),
        ("lakehouse_health_since_seconds", (stream,), 86400.0),
        ("lakehouse_store_since_seconds", store, 86400.0),
    }


def test_an_observation_is_json_with_times_in_iso_8601() -> None:
    (state,) = json.loads(json.dumps(OBSERVATION.as_json()))["streams"]
    assert state["health"] == {
        "word": "blocked",
        "reason": "gate closed: a",
        "since": "1970-01-02T00:00:00+00:00",
        "is_unrun": False,
        "todo": WHAT_TO_DO[Word.BLOCKED],
    }


@pytest.fixture
def metrics() -> DriverMetrics:
    return DriverMetrics(STREAMS, labels(Settings()))


def test_a_driver_counts_rows_by_what_became_of_them(metrics: DriverMetrics) -> None:
    result = BatchResult(10, {"metrics_events": 9, "dead_letters": 1}, refused=1)
    metrics.on_batch(BatchDone("silver.metrics_events", 0, result, 0.5))
    metrics.on_batch(BatchDone("silver.metrics_events", 1, BatchResult(2, {"metrics_events": 2}), 0.5))
    metrics.on_phases("silver.metrics_events", {"plan": 1500, "process": 500})
    metrics.on_batch(BatchDone("silver.metrics_events", None, BatchResult(0), 0.25))  # triggered by the clock
    labels = (("layer", "silver"), ("stream", "metrics"), ("table", "metrics_events"))
    found = samples_of(metrics.registry)
    assert {sample for sample in found if sample[0].startswith("lakehouse_records")} == {
        ("lakehouse_records_total", labels, 12.0),
        ("lakehouse_records_refused_total", labels, 1.0),
        ("lakehouse_records_written_total", (labels[0], ("outcome", "metrics_events"), *labels[1:]), 11.0),
        ("lakehouse_records_written_total", (labels[0], ("outcome", "dead_letters"), *labels[1:]), 1.0),
    }
    assert {sample for sample in found if sample[0] == "lakehouse_batch_duration_seconds_sum"} == {
        ("lakehouse_batch_duration_seconds_sum", (labels[0], ("phase", "process"), *labels[1:]), 0.75),
        ("lakehouse_batch_duration_seconds_sum", (labels[0], ("phase", "plan"), *labels[1:]), 1.5),
    }


def test_a_driver_counts_how_long_kafka_and_redis_take(metrics: DriverMetrics) -> None:
    metrics.on_batch(BatchDone("export.metrics_1m", 0, BatchResult(2, {}, {"kafka": 0.75, "redis": 0.2}), 1))
    metrics.on_batch(BatchDone("export.metrics_1m", 1, BatchResult(2, {}, {"kafka": 0.5, "redis": 0.1}), 1))
    labels = (("layer", "export"), ("stream", "metrics"), ("table", "metrics_1m"))
    found = samples_of(metrics.registry)
    assert {sample for sample in found if sample[0].endswith(("kafka_write_seconds_sum", "_count"))} == {
        ("lakehouse_kafka_write_seconds_sum", labels, 1.25),
        ("lakehouse_kafka_write_seconds_count", labels, 2.0),
        ("lakehouse_redis_write_seconds_count", labels, 2.0),
    }


def check_with_promtool(registry: CollectorRegistry) -> str:
    """Return promtool's verdict on what the registry exposes to a real Prometheus."""
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: scripts/prometheus.sh installs it"
    done = subprocess.run(
        [program, "check", "metrics"], input=generate_text(registry), capture_output=True, check=False
    )
    return f"{done.returncode} {done.stdout.decode()}{done.stderr.decode()}"


def test_promtool_finds_nothing_to_say_of_a_driver_nor_of_who_looks_from_outside(
    metrics: DriverMetrics,
) -> None:
    metrics.on_batch(BatchDone("export.metrics_1m", 0, BatchResult(2, {"redis": 2}, {"redis": 0.2}), 0.5))
    metrics.on_phases("export.metrics_1m", {"plan": 1500})
    metrics.on_failure("export.metrics_1m", "the disk is full")
    metrics.on_restart("export.metrics_1m")
    metrics.registry.register(ObservationCollector(lambda: OBSERVATION))
    assert check_with_promtool(metrics.registry) == "0 "

    rule = MetricRule(name="cpu", kind="metric", metric="cpu", over=90, windows=2)
    windows = [Window("checkout", AT - timedelta(minutes=n), 90.0 + n) for n in (1, 2)]
    facts = Facts(OBSERVATION, {"cpu": windows})
    outside = CollectorRegistry()
    outside.register(ObservationCollector(lambda: OBSERVATION))
    outside.register(RuleValues([rule], lambda: facts))
    assert check_with_promtool(outside) == "0 "
    labels = (("metric", "cpu"), ("rule", "cpu"), ("service", "checkout"), ("statistic", "avg"))
    assert ("lakehouse_metric_rule_value", labels, 91.0) in samples_of(outside)


@pytest.fixture
def address(metrics: DriverMetrics) -> Iterator[str]:
    with serving(metrics.registry, metrics.readiness, 0) as port:
        yield f"http://127.0.0.1:{port}"


def get(url: str, accept: str = "") -> tuple[int, str, str]:
    """Return the status, content type and body."""
    try:
        with urlopen(Request(url, headers={"Accept": accept}), timeout=10) as answer:  # noqa: S310
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_a_process_is_ready_until_something_fails_and_again_when_that_is_over(
    metrics: DriverMetrics, address: str
) -> None:
    ready = f"{address}/health/ready"
    assert get(ready) == (200, "application/json", '{"status": "ready", "reasons": []}')
    metrics.on_failure("gold.metrics_1m", "the disk is full")
    reason = "gold.metrics_1m: the disk is full"
    assert get(ready) == (503, "application/json", f'{{"status": "not ready", "reasons": ["{reason}"]}}')
    assert get(f"{address}/health/live")[0] == 200
    metrics.on_recovery("gold.metrics_1m")
    assert get(ready)[0] == 200
    labels = (("layer", "gold"), ("stream", "metrics"), ("table", "metrics_1m"))
    assert ("lakehouse_query_failures_total", labels, 1.0) in samples_of(metrics.registry)


def test_a_scraper_gets_the_format_that_it_asks_for(address: str) -> None:
    status, plain, _ = get(f"{address}/metrics")
    assert (status, plain.split(";")[0]) == (200, "text/plain")
    status, open_, text = get(f"{address}/metrics", "application/openmetrics-text; version=1.0.0")
    assert (status, open_.split(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert get(f"{address}/else")[0] == 404


def test_a_scrape_that_fails_is_answered_with_the_reason() -> None:
    def broken() -> Observation:
        raise KeyError("size")

    registry = CollectorRegistry()
    registry.register(ObservationCollector(broken))
    with serving(registry, lambda: Readiness(not broken()), 0) as port:
        answers = [get(f"http://127.0.0.1:{port}/{path}") for path in ("metrics", "health/ready")]
    assert answers == 2 * [
        (500, "application/json", """{"status": "failed", "reasons": ["KeyError: 'size'"]}""")
    ]


def test_a_port_that_is_taken_is_named(metrics: DriverMetrics, address: str) -> None:
    port = int(address.rpartition(":")[2])
    with (
        pytest.raises(ServiceError, match=f"telemetry cannot be served at 127.0.0.1:{port}"),
        serving(metrics.registry, metrics.readiness, port),
    ):
        pass
