"""metrics: windowed service metrics, and summaries of each metric over all services.

    metrics-events ── silver.metrics_events ─┬─ gold.metrics_1m ─────────── metrics-aggregated-1m, Redis
                                             └─ gold.metrics_summary_10m ── metrics-summary-10m, Redis

A record is {"serviceId", "metricName", "value", "timestamp"?, "environment"?}. It has no identity: two
records with the same content are two measurements, and both count.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.settings import Settings
from lakehouse.stream import (
    Contract,
    EventClock,
    Export,
    Field,
    FieldType,
    FoldState,
    GoldTable,
    RedisView,
    Source,
    Stream,
)
from lakehouse.windows import (
    StatisticsWindows,
    Tumbling,
    due_windows,
    fixed_settings,
    statistics_message,
)

CONTRACT = Contract(
    fields=(
        Field("serviceId", "service_id", FieldType.STRING),
        Field("metricName", "metric_name", FieldType.STRING),
        Field("value", "value", FieldType.DOUBLE),
        Field("environment", "environment", FieldType.STRING, required=False),
    )
)
NO_ENVIRONMENT = "default"

_MINUTES = StatisticsWindows(Tumbling(by=("service_id", "metric_name"), length_s=60))
_SUMMARIES = StatisticsWindows(Tumbling(by=("environment", "metric_name"), length_s=600))
_CLOCK = EventClock("last_event_time", due_windows)
_STATE = FoldState(("m2", "sketch"), until="window_end", settled=lambda: F.col("is_final"))


def partial_summaries(clean: DataFrame, settings: Settings) -> DataFrame:
    """Return the state of each ten-minute summary, over all services of an environment; one row a key."""
    named = F.coalesce("environment", F.lit(NO_ENVIRONMENT))
    return _SUMMARIES.partial(clean.withColumn("environment", named), settings)


def _series() -> Column:
    return F.concat_ws(":", "service_id", "metric_name")


def _summary_series() -> Column:
    return F.concat(F.lit("environment="), "environment", F.lit(":metric="), "metric_name")


def _at(series: Column) -> Column:
    return F.concat_ws(":", series, F.unix_millis("window_start").cast("string"))


METRICS_1M = GoldTable(
    name="metrics_1m",
    reads=("metrics_events",),
    keys=_MINUTES.windows.keys,
    schema=_MINUTES.schema,
    extent=("window_start", "window_start"),
    partial=_MINUTES.partial,
    fold=_MINUTES.fold,
    clock=_CLOCK,
    fixed=fixed_settings,
    state=_STATE,
    export=Export(
        topic="metrics-aggregated-1m",
        key=_series,
        value=lambda: statistics_message({"serviceId": "service_id", "metricName": "metric_name"}),
        redis=RedisView(
            row_key=lambda: _at(_series()),
            group=lambda: F.col("metric_name"),
            member=lambda: F.col("service_id"),
            order=lambda: F.unix_millis("window_start"),
        ),
    ),
)
"""One row per (service_id, metric_name, window_start), a minute of event time."""

METRICS_SUMMARY_10M = GoldTable(
    name="metrics_summary_10m",
    reads=("metrics_events",),
    keys=_SUMMARIES.windows.keys,
    schema=_SUMMARIES.schema,
    extent=("window_start", "window_start"),
    partial=partial_summaries,
    fold=_SUMMARIES.fold,
    clock=_CLOCK,
    fixed=fixed_settings,
    state=_STATE,
    export=Export(
        topic="metrics-summary-10m",
        key=_summary_series,
        value=lambda: statistics_message({"environment": "environment", "metricName": "metric_name"}),
        redis=RedisView(
            row_key=lambda: _at(_summary_series()),
            group=lambda: F.col("metric_name"),
            member=lambda: F.col("environment"),
            order=lambda: F.unix_millis("window_start"),
        ),
    ),
)
"""One row per (environment, metric_name, window_start), ten minutes of event time over all services;
environment is "default" for records that name none."""

METRICS = Stream(
    name="metrics",
    sources=(Source("metrics-events", "metrics_events", CONTRACT),),
    gold=(METRICS_1M, METRICS_SUMMARY_10M),
)
