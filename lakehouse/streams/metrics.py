"""metrics: windowed service metrics, and summaries of each metric over all services.

    metrics-events ── silver.metrics_events ─┬─ gold.metrics_1m ─────────── metrics-aggregated-1m, Redis
                                             └─ gold.metrics_summary_10m ── metrics-summary-10m, Redis

A record is {"serviceId", "metricName", "value", "timestamp"?, "environment"?}. It has no identity: two
records with the same content are two measurements, and both count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.messages.layout import Equals, Key, Millis, Name, Plain, joined_key, key
from lakehouse.settings import Settings
from lakehouse.stream import (
    Comparison,
    Contract,
    EventClock,
    Export,
    Field,
    FieldType,
    FoldState,
    GoldTable,
    Quantiles,
    RedisView,
    Source,
    Stream,
)
from lakehouse.transforms import statistics
from lakehouse.transforms.windows import (
    StatisticsWindows,
    Tumbling,
    due_ends,
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


def named(clean: DataFrame) -> DataFrame:
    """Give records without an environment the default one."""
    return clean.withColumn("environment", F.coalesce("environment", F.lit(NO_ENVIRONMENT)))


def partial_summaries(clean: DataFrame, settings: Settings) -> DataFrame:
    """Return the state of each ten-minute summary over all services of an environment; one row per key."""
    return _SUMMARIES.preaggregate(named(clean), settings)


def _kept(
    name: str,
    kept: StatisticsWindows,
    *,
    topic: str,
    series: Key,
    names: Mapping[str, str],
    member: str,
    preaggregate: Callable[[DataFrame, Settings], DataFrame],
    keyed: Callable[[DataFrame], DataFrame],
    merge_every_s: int = 0,
) -> GoldTable:
    """Return a table of windows; `names` are its group columns by JSON name, `member` is one of them."""
    return GoldTable(
        name=name,
        reads=("metrics_events",),
        keys=kept.windows.keys,
        schema=kept.schema,
        time_columns=("window_start", "window_start"),
        window_s=kept.windows.length_s,
        merge_every_s=merge_every_s,
        preaggregate=preaggregate,
        fold=kept.fold,
        clock=EventClock("last_event_time", due_windows, "window_end", due_ends),
        pinned_settings=fixed_settings,
        comparison=Comparison(
            ignored=("sketch",),
            slack=statistics.slack,
            quantiles=Quantiles(
                value="value",
                ranks=statistics.PERCENTILES,
                keyed=keyed,
                exact_to=lambda settings: settings.quantile_k,
                limit=lambda settings: statistics.rank_error_limit(settings.quantile_k),
            ),
        ),
        needs_recompute=kept.needs_recompute,
        state=FoldState(
            tuple(statistics.FOR_MERGES.names),
            until="window_end",
            settled=lambda: F.col("is_final"),
            unsettled_from=kept.unsettled_from,
        ),
        final=Equals("is_final", True),
        export=Export(
            topic=topic,
            key=series,
            identity=("windowStart",),
            value=statistics_message(names),
            redis=RedisView(
                row_key=series + key(":", Millis("window_start")),
                group=key(Plain("metric_name")),
                member=key(Plain(member)),
                order=Millis("window_start"),
            ),
        ),
    )


METRICS_1M = _kept(
    "metrics_1m",
    _MINUTES,
    topic="metrics-aggregated-1m",
    series=joined_key("service_id", "metric_name"),
    names={"serviceId": "service_id", "metricName": "metric_name"},
    member="service_id",
    preaggregate=_MINUTES.preaggregate,
    keyed=_MINUTES.keyed,
)
"""One row per (service_id, metric_name, window_start), a minute of event time."""

METRICS_SUMMARY_10M = _kept(
    "metrics_summary_10m",
    _SUMMARIES,
    topic="metrics-summary-10m",
    series=key("environment=", Name("environment"), ":metric=", Name("metric_name")),
    names={"environment": "environment", "metricName": "metric_name"},
    member="environment",
    preaggregate=partial_summaries,
    keyed=lambda clean: _SUMMARIES.keyed(named(clean)),
    merge_every_s=10,
)
"""One row per (environment, metric_name, window_start), ten minutes of event time over all services;
environment is "default" for records that name none."""

METRICS = Stream(
    name="metrics",
    sources=(Source("metrics-events", "metrics_events", CONTRACT),),
    gold=(METRICS_1M, METRICS_SUMMARY_10M),
)
