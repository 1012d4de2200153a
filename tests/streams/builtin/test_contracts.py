"""The names that users, exports and checks rely on, spelled out once: streams, topics, tables and columns.

Tables may have further columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from lakehouse.engine.layers import bronze, silver
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from tests.support.streams import STREAMS

Tables = dict[str, str]


@dataclass(frozen=True)
class Documented:
    """A stream: source topics, export topics by gold table (None for none), and columns in Spark SQL."""

    sources: dict[str, str]
    exports: dict[str, str | None]
    silver: Tables
    gold: Tables
    keys: dict[str, tuple[str, ...]]


KAFKA = "event_time timestamp, topic string, partition int, offset bigint"
STATISTICS = (
    "count bigint, sum double, min double, max double, avg double, variance double, stddev double, "
    "p50 double, p90 double, p95 double, p99 double, last_event_time timestamp, is_final boolean"
)
WINDOW = "window_start timestamp, window_end timestamp"
BRONZE = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int, "
    "offset bigint, timestamp timestamp, timestamp_type int, ingested_at timestamp"
)
LETTERS = (
    "id string, stream string, stage string, topic string, partition int, offset bigint, "
    "kafka_timestamp timestamp, key binary, value binary, headers array<struct<key:string,value:binary>>, "
    "reasons array<struct<rule:string,column:string,message:string>>, status string, attempts int, "
    "first_seen timestamp, last_attempt timestamp"
)

DOCUMENTED = {
    "metrics": Documented(
        sources={"metrics-events": "metrics_events"},
        exports={"metrics_1m": "metrics-aggregated-1m", "metrics_summary_10m": "metrics-summary-10m"},
        silver={
            "metrics_events": "service_id string, metric_name string, value double, environment string, "
            + KAFKA,
        },
        gold={
            "metrics_1m": f"service_id string, metric_name string, {WINDOW}, {STATISTICS}",
            "metrics_summary_10m": f"environment string, metric_name string, {WINDOW}, {STATISTICS}",
        },
        keys={
            "metrics_1m": ("service_id", "metric_name", "window_start"),
            "metrics_summary_10m": ("environment", "metric_name", "window_start"),
        },
    ),
    "calls": Documented(
        sources={"analyticsTopic": "call_analytics", "metricsTopic": "call_metrics"},
        exports={"call_records": "outputTopic"},
        silver={
            "call_analytics": f"user1 string, user2 string, analytics string, {KAFKA}",
            "call_metrics": f"user1 string, user2 string, metrics string, {KAFKA}",
        },
        gold={
            "call_records": "user1 string, user2 string, ts timestamp, analytics string, metrics string, "
            "analytics_events bigint, metrics_events bigint, last_event_time timestamp, status string, "
            "closed_at timestamp",
        },
        keys={"call_records": ("user1", "user2", "ts")},
    ),
    "sales": Documented(
        sources={"sales-events-v1": "sales_events"},
        exports={"product_sales": None, "sales_notifications": "notifications-events-v1"},
        silver={"sales_events": f"product string, value decimal(38,9), {KAFKA}"},
        gold={
            "product_sales": "product string, total decimal(38,9), count bigint, last_event_time timestamp",
            "sales_notifications": "product string, value decimal(38,9), crossing bigint, "
            "event_time timestamp",
        },
        keys={
            "product_sales": ("product",),
            "sales_notifications": ("product", "partition", "offset"),
        },
    ),
    "transactions": Documented(
        sources={"transactions-topic": "transactions"},
        exports={"user_transactions_5m": "aggregated-transactions"},
        silver={"transactions": f"user_id string, amount decimal(38,9), {KAFKA}"},
        gold={"user_transactions_5m": f"user_id string, {WINDOW}, total_amount decimal(38,9), count bigint"},
        keys={"user_transactions_5m": ("user_id", "window_start")},
    ),
}


def missing(schema: StructType, documented: str) -> list[str]:
    """Return the documented columns that are missing, of another type or, if there are none, out of order."""
    columns = [f"{field.name} {field.dataType.simpleString()}" for field in schema.fields]
    wanted = documented.split(", ")
    return [column for column in wanted if column not in columns] or [
        f"{column}: out of order"
        for column, found in zip(wanted, filter(wanted.__contains__, columns), strict=True)
        if column != found
    ]


def test_the_streams_are_the_documented_ones_with_their_topics_and_tables() -> None:
    assert {
        stream.name: (
            {source.topic: source.table for source in stream.sources},
            {table.name: table.export.topic for table in stream.tables},
            set(stream.topics),
        )
        for stream in STREAMS
    } == {
        name: (one.sources, one.exports, {*one.sources, *one.exports.values()} - {None})
        for name, one in DOCUMENTED.items()
    }


def test_gold_tables_have_the_documented_columns_and_keys() -> None:
    found = {table.name: table for stream in STREAMS for table in stream.tables}

    for documented in DOCUMENTED.values():
        for name, columns in documented.gold.items():
            assert missing(found[name].schema, columns) == [], name
            assert found[name].keys == documented.keys[name]


def test_silver_tables_have_the_documented_columns() -> None:
    found = {source.table: silver.spec(source).schema for stream in STREAMS for source in stream.sources}

    assert {
        name: missing(found[name], columns)
        for documented in DOCUMENTED.values()
        for name, columns in documented.silver.items()
    } == {name: [] for name in found}


def test_bronze_tables_and_the_dead_letters_have_the_documented_columns() -> None:
    specs = [bronze.spec(source) for stream in STREAMS for source in stream.sources]

    assert [(spec.layer, spec.name, missing(spec.schema, BRONZE)) for spec in specs] == [
        ("bronze", name, []) for documented in DOCUMENTED.values() for name in documented.sources.values()
    ]
    assert DEAD_LETTERS.qualified_name == "silver.dead_letters"
    assert missing(DEAD_LETTERS.schema, LETTERS) == []
