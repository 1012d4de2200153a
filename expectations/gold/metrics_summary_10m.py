"""The suite for gold.metrics_summary_10m: statistics per environment, metric and ten-minute window."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.gold.windows import aligned, has_events, statistics
from lakehouse.streams.suites import fresh, make_suite, unique
from lakehouse.streams.window_lengths import Seconds

KEY = ("environment", "metric_name", "window_start")
LENGTH = Seconds(600)


def suite() -> ExpectationSuite:
    """Return the suite for gold.metrics_summary_10m."""
    group = {"environment": "coalesce(environment, 'default')", "metric_name": "metric_name"}
    return make_suite(
        "gold.metrics_summary_10m",
        unique(KEY),
        *aligned(KEY, LENGTH),
        *statistics(KEY),
        has_events("silver_metrics_events", group, LENGTH, first="last_event_time", last="last_event_time"),
        fresh("last_event_time", within="24h"),
    )
