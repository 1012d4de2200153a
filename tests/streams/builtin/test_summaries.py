"""metrics_summary_10m: ten minutes of an environment's metric, whichever services sent it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.layers import LAYERS
from lakehouse.settings import Settings
from lakehouse.testing import Case
from tests.support import pipeline
from tests.support.pipeline import Raw
from tests.support.settings import MakeSettings
from tests.support.streams import METRICS, METRICS_SUMMARY_10M, under

STREAM = replace(METRICS, gold=(METRICS_SUMMARY_10M,))
DAY_S = 24 * 3600
WINDOW_MS = 600_000
START_MS = (int(time.time() * 1000) - 3_600_000) // WINDOW_MS * WINDOW_MS
"""The start of a window about an hour ago."""
MONTH_MS = 30 * DAY_S * 1000


def measured(value: float, after_ms: int = 0, service: str = "api", **more: str | None) -> Raw:
    record = {"serviceId": service, "metricName": "cpu", "value": value, "timestamp": START_MS + after_ms}
    return Raw(json.dumps(record | more).encode(), key=service.encode())


def take(spark: SparkSession, settings: Settings, *records: Raw) -> list[tuple[str, dict[str, Any]]]:
    """Send the records, run every layer, and return every message sent so far."""
    pipeline.send(settings, records)
    pipeline.run_layers(spark, settings, *LAYERS, stream=STREAM)
    topic = settings.topic("metrics-summary-10m")
    found = pipeline.read_topic(settings.kafka.bootstrap_servers, topic)
    return [(one.key.decode(), json.loads(one.value)) for one in found]


def test_services_of_an_environment_are_summed_up_and_no_environment_is_called_default(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings()

    messages = take(
        spark,
        settings,
        measured(1.0, environment="prod"),
        measured(4.0, 599_999, "web", environment="prod"),
        measured(100.0, 600_000, "web", environment="prod"),
        measured(7.0),
        measured(8.0, 1, "web", environment=None),
        measured(9.0, 2, "db", environment="default"),
        measured(10.0, environment=""),
    )

    by_key = {(key, value["windowStart"]): value for key, value in messages}
    assert by_key.keys() == {
        ("environment=prod:metric=cpu", START_MS),
        ("environment=prod:metric=cpu", START_MS + WINDOW_MS),
        ("environment=default:metric=cpu", START_MS),
        ("environment=:metric=cpu", START_MS),
    }
    assert by_key["environment=prod:metric=cpu", START_MS] == {
        "environment": "prod",
        "metricName": "cpu",
        "windowStart": START_MS,
        "windowEnd": START_MS + WINDOW_MS,
        "count": 2,
        "sum": 5.0,
        "min": 1.0,
        "max": 4.0,
        "avg": 2.5,
        "variance": 4.5,
        "stddev": pytest.approx(4.5**0.5),
        "p50": 1.0,
        "p90": 4.0,
        "p95": 4.0,
        "p99": 4.0,
        "lastEventTime": START_MS + 599_999,
        "isFinal": False,
    }
    default = by_key["environment=default:metric=cpu", START_MS]
    assert (default["environment"], default["count"], default["sum"]) == ("default", 3, 24.0)


FIRST, LATER = [measured(1.0, -MONTH_MS), measured(1.0)], [measured(3.0, -MONTH_MS + 599_999, "web")]


def windows(count: int, total: float) -> list[dict[str, object]]:
    """Return the summaries of the window a month ago, with these values, and of the recent window."""
    begin = datetime.fromtimestamp(START_MS / 1000, UTC)
    old = {"window_start": begin - timedelta(milliseconds=MONTH_MS), "is_final": True}
    return [old | {"count": count, "sum": total}, {"window_start": begin}]


def test_a_record_that_is_a_month_late_updates_its_summary_when_it_is_allowed_to(
    case: Case, session_settings: Settings
) -> None:
    stream = under(session_settings.changed({"stream_defaults.allowed_lateness_s": 31 * DAY_S}), STREAM)

    taken = case(stream, FIRST, gold=windows(1, 1.0))
    taken.then(LATER, dead=[], gold=windows(2, 4.0))


def test_a_record_that_is_a_month_late_is_a_dead_letter_otherwise(case: Case) -> None:
    """The first records are accepted, because nothing is late for an empty table."""
    taken = case(STREAM, FIRST, dead=[], gold=windows(1, 1.0))
    taken.then(
        LATER, dead=[{"rule": "late", "column": "event_time", "value": LATER[0].value}], gold=windows(1, 1.0)
    )
