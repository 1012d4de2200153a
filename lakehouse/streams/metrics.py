"""metrics: windowed service metrics.

    metrics-events ── silver.metrics_events ── gold.metrics_1m ── metrics-aggregated-1m, Redis

A record is {"serviceId", "metricName", "value", "timestamp"?, "environment"?}. It has no identity: two
records with the same content are two measurements, and both count.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import statistics
from lakehouse.settings import Settings
from lakehouse.stream import (
    Contract,
    Export,
    Field,
    FieldType,
    Front,
    GoldTable,
    RedisView,
    Source,
    Stream,
)

WINDOW_S = 60

CONTRACT = Contract(
    fields=(
        Field("serviceId", "service_id", FieldType.STRING),
        Field("metricName", "metric_name", FieldType.STRING),
        Field("value", "value", FieldType.DOUBLE),
        Field("environment", "environment", FieldType.STRING, required=False),
    )
)

KEYS = ("service_id", "metric_name", "window_start")

METRICS_1M_SCHEMA = StructType(
    [
        *StructType()
        .add("service_id", "string")
        .add("metric_name", "string")
        .add("window_start", "timestamp")
        .add("window_end", "timestamp"),
        *statistics.SCHEMA.fields[:11],
        *StructType().add("last_event_time", "timestamp").add("is_final", "boolean"),
        *statistics.SCHEMA.fields[11:],
    ]
)
"""One row per (service_id, metric_name, window_start): a tumbling window of one minute of event time,
[window_start, window_end), UTC. is_final: event time has passed window_end by the grace; a later update of a
final row is still possible, as long as silver accepts records for it."""


def partial_windows(clean: DataFrame, settings: Settings) -> DataFrame:
    """Return the state of each window over the clean rows of a micro-batch, one row a key."""
    micros = F.unix_micros("event_time")
    window = F.timestamp_micros(micros - F.pmod(micros, F.lit(WINDOW_S * 1_000_000)))
    states = statistics.aggregates(F.col("value"), settings.quantile_k) | {
        "last_event_time": F.max("event_time")
    }
    return clean.groupBy("service_id", "metric_name", window.alias("window_start")).agg(
        *(state.alias(name) for name, state in states.items())
    )


def fold_windows(partials: DataFrame, current: DataFrame, front: Front, settings: Settings) -> DataFrame:
    """Return the windows that are new, have new values, or have become final by the front."""
    joined = partials.alias("p").join(current.alias("c"), list(KEYS), "full_outer")
    window_end = F.col("window_start") + F.expr(f"INTERVAL {WINDOW_S} SECONDS")
    touched = joined.where(
        F.col("p.count").isNotNull() | (_is_final(window_end, front, settings) & ~F.col("c.is_final"))
    )
    states = touched.select(
        *KEYS,
        *(state.alias(name) for name, state in statistics.merged("c", "p").items()),
        F.greatest("c.last_event_time", "p.last_event_time").alias("last_event_time"),
    )
    return (
        states.withColumns(statistics.derived())
        .withColumn("window_end", window_end)
        .withColumn("is_final", _is_final(window_end, front, settings))
        .select(*METRICS_1M_SCHEMA.names)
    )


def due_windows(front: Front, settings: Settings) -> Column:
    """Select the current rows that become final between the two ends of the front."""
    final_now = _is_final(F.col("window_end"), front, settings)
    if front.before is None:
        return final_now
    return final_now & ~_is_final(F.col("window_end"), Front(None, front.before), settings)


def fixed_settings(settings: Settings) -> Mapping[str, str]:
    """Return the settings that rows of metrics_1m depend on."""
    return {"quantile_k": str(settings.quantile_k), "grace_s": str(settings.grace_s)}


def _is_final(window_end: Column, front: Front, settings: Settings) -> Column:
    return window_end <= F.lit(front.now) - F.expr(f"INTERVAL {settings.grace_s} SECONDS")


def _message() -> Column:
    statistic_names = statistics.SCHEMA.names[:11]
    return F.struct(
        F.col("service_id").alias("serviceId"),
        F.col("metric_name").alias("metricName"),
        F.unix_millis("window_start").alias("windowStart"),
        F.unix_millis("window_end").alias("windowEnd"),
        *(F.col(name) for name in statistic_names),
        F.unix_millis("last_event_time").alias("lastEventTime"),
        F.col("is_final").alias("isFinal"),
    )


def _series() -> Column:
    return F.concat_ws(":", "service_id", "metric_name")


METRICS_1M = GoldTable(
    name="metrics_1m",
    reads="metrics_events",
    keys=KEYS,
    schema=METRICS_1M_SCHEMA,
    time_column="window_start",
    event_time_column="last_event_time",
    partial=partial_windows,
    fold=fold_windows,
    due=due_windows,
    fixed=fixed_settings,
    export=Export(
        topic="metrics-aggregated-1m",
        key=_series,
        value=_message,
        redis=RedisView(
            row_key=lambda: F.concat_ws(":", _series(), F.unix_millis("window_start").cast("string")),
            group=lambda: F.col("metric_name"),
            member=lambda: F.col("service_id"),
            order=lambda: F.unix_millis("window_start"),
        ),
    ),
)

METRICS = Stream(
    name="metrics",
    sources=(Source("metrics-events", "metrics_events", CONTRACT),),
    gold=(METRICS_1M,),
)
