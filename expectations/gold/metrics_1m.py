"""The suite for gold.metrics_1m: statistics per service, metric and minute."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.gold.windows import aligned, has_events, statistics
from lakehouse.streams.suites import fresh, make_suite, unique
from lakehouse.streams.window_lengths import Seconds

KEY = ("service_id", "metric_name", "window_start")
LENGTH = Seconds(60)


def suite() -> ExpectationSuite:
    """Return the suite for gold.metrics_1m."""
    group = {"service_id": "service_id", "metric_name": "metric_name"}
    return make_suite(
        "gold.metrics_1m",
        unique(KEY),
        *aligned(KEY, LENGTH),
        *statistics(KEY),
        has_events("silver_metrics_events", group, LENGTH, first="last_event_time", last="last_event_time"),
        fresh("last_event_time", within="24h"),
    )
