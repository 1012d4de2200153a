"""metrics: service metrics per window, and summaries of each metric over all services.

    metrics-events ── silver.metrics_events ─┬─ gold.metrics_1m ─────────── metrics-aggregated-1m, Redis
                                             └─ gold.metrics_summary_10m ── metrics-summary-10m, Redis

A record is {"serviceId", "metricName", "value", "timestamp"?, "environment"?}. It has no id: two records with
the same content are two measurements, and both count.
"""

from __future__ import annotations

from lakehouse.streams.definition import Stream
from lakehouse.streams.kinds import Records, Windows, windowed_statistics
from lakehouse.streams.messages.layout import Name, key

NO_ENVIRONMENT = "default"


def make(grace_s: int, quantile_k: int, idle_after_s: int) -> Stream:
    """Return the stream; windows become final `grace_s` past their end, `quantile_k` is the sketch size.

    Once no event has arrived for `idle_after_s`, the wall clock makes windows final.
    """
    return windowed_statistics(
        "metrics",
        Records("metrics-events", table="metrics_events"),
        value="value",
        windows=(
            Windows(
                by=("serviceId", "metricName"),
                length_s=60,
                gold="metrics_1m",
                to="metrics-aggregated-1m",
                comment="One row per service, metric and minute of event time: statistics of the values.",
            ),
            Windows(
                by=("environment", "metricName"),
                length_s=600,
                absent={"environment": NO_ENVIRONMENT},
                gold="metrics_summary_10m",
                to="metrics-summary-10m",
                series=key("environment=", Name("environment"), ":metric=", Name("metric_name")),
                merge_every_s=10,
                comment="One row per environment, metric and ten minutes of event time, over all services; "
                "the environment is default where a record names none.",
            ),
        ),
        grace_s=grace_s,
        idle_after_s=idle_after_s,
        quantile_k=quantile_k,
    )
