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
from lakehouse.stream import (
    Comparison,
    Contract,
    Export,
    Field,
    FieldType,
    FoldState,
    GoldTable,
    Quantiles,
    RedisView,
    Source,
    Stream,
    only,
)
from lakehouse.transforms import statistics
from lakehouse.transforms.windows import StatisticsWindows, Tumbling, statistics_message

CONTRACT = Contract(
    fields=(
        Field("serviceId", "service_id", FieldType.STRING),
        Field("metricName", "metric_name", FieldType.STRING),
        Field("value", "value", FieldType.DOUBLE),
        Field("environment", "environment", FieldType.STRING, required=False),
    )
)
SOURCE = Source("metrics-events", "metrics_events", CONTRACT)
NO_ENVIRONMENT = "default"

MINUTES = Tumbling(by=("service_id", "metric_name"), length_s=60)
TEN_MINUTES = Tumbling(by=("environment", "metric_name"), length_s=600)


def make(grace_s: int, quantile_k: int, idle_after_s: int) -> Stream:
    """Return the stream; windows become final `grace_s` past their end, `quantile_k` is the sketches' size.

    Once no event has come for `idle_after_s`, the wall clock decides what is past.

    gold.metrics_1m has one row per (service_id, metric_name, window_start), a minute of event time.
    gold.metrics_summary_10m has one row per (environment, metric_name, window_start), ten minutes of event
    time over all services; environment is "default" for records that name none.
    """
    minutes = _kept(
        "metrics_1m",
        "One row per service, metric and minute of event time: statistics of the values.",
        StatisticsWindows(MINUTES, grace_s, quantile_k, idle_after_s),
        topic="metrics-aggregated-1m",
        series=joined_key("service_id", "metric_name"),
        names={"serviceId": "service_id", "metricName": "metric_name"},
        member="service_id",
    )
    summaries = _kept(
        "metrics_summary_10m",
        "One row per environment, metric and ten minutes of event time, over all services; the environment "
        "is default where a record names none.",
        StatisticsWindows(TEN_MINUTES, grace_s, quantile_k, idle_after_s),
        topic="metrics-summary-10m",
        series=key("environment=", Name("environment"), ":metric=", Name("metric_name")),
        names={"environment": "environment", "metricName": "metric_name"},
        member="environment",
        combine=with_environment,
        merge_every_s=10,
    )
    return Stream("metrics", (SOURCE,), (minutes, summaries))


def with_environment(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of silver; those without an environment get the default one."""
    return only(frames).withColumn("environment", F.coalesce("environment", F.lit(NO_ENVIRONMENT)))


def _kept(
    name: str,
    comment: str,
    kept: StatisticsWindows,
    *,
    topic: str,
    series: Key,
    names: Mapping[str, str],
    member: str,
    combine: Callable[[Mapping[str, DataFrame]], DataFrame] = only,
    merge_every_s: int = 0,
) -> GoldTable:
    """Return a table of windows; `names` are its group columns by JSON name, `member` is one of them."""
    return GoldTable(
        name=name,
        comment=comment,
        reads=(SOURCE.table,),
        combine=combine,
        keys=kept.windows.keys,
        schema=kept.schema,
        time_columns=("window_start", "window_start"),
        window_s=kept.windows.length_s,
        merge_every_s=merge_every_s,
        preaggregate=kept.preaggregate,
        fold=kept.fold,
        clock=kept.clock(),
        pinned_settings=kept.pinned_settings,
        comparison=Comparison(
            ignored=("sketch",),
            slack=statistics.slack,
            quantiles=Quantiles(
                value="value",
                ranks=statistics.PERCENTILES,
                keyed=kept.keyed,
                exact_to=kept.quantile_k,
                limit=statistics.rank_error_limit(kept.quantile_k),
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
