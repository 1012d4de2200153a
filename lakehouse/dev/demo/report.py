"""The demo's report: sample rows after each layer, row counts for each stream, and commands to try next."""

from __future__ import annotations

import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lakehouse.common.errors import LakehouseError
from lakehouse.common.rows_as_text import as_table
from lakehouse.common.terminal import Console
from lakehouse.dev.samples.producing import Summary
from lakehouse.engine.layers import LayerName
from lakehouse.engine.runtime.runner import BatchDone
from lakehouse.operations.catalog.spark_sql import ask, define_views
from lakehouse.settings import Settings
from lakehouse.sinks.redis.client import redis_client
from lakehouse.sinks.redis.rows import latest_key, row_key
from lakehouse.storage.kafka.clients import Consumer
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import BY_DEFAULT, load

_KAFKA_TIMEOUT_MS = 10_000


@dataclass
class Done:
    """The results of a demo run: events sent per stream, seconds spent per layer, and all micro-batches."""

    produced: dict[str, Summary] = field(default_factory=dict)
    layer_s: dict[LayerName, float] = field(default_factory=dict)
    batches: list[BatchDone] = field(default_factory=list)


@dataclass(frozen=True)
class _Shown:
    """A stream's part of the report: a query for two numbers that must be equal, and one for sample rows."""

    what: str
    books: str
    title: str
    rows: str


_SHOWN = {
    "metrics": _Shown(
        "clean events = events counted in windows",
        """
        SELECT count(*), (SELECT sum(count) FROM gold.metrics_1m) FROM silver.metrics_events
        """,
        "gold.metrics_1m, the latest windows of one metric",
        """
        SELECT service_id, window_start, count, round(avg, 1) AS avg, round(stddev, 1) AS stddev,
               p50, p95, p99, is_final
        FROM gold.metrics_1m WHERE metric_name = 'request_latency_ms'
        ORDER BY window_start DESC, service_id LIMIT 5
        """,
    ),
    "calls": _Shown(
        "clean events of both topics = events counted in calls",
        """
        SELECT (SELECT count(*) FROM silver.call_analytics) + (SELECT count(*) FROM silver.call_metrics),
               (SELECT sum(analytics_events + metrics_events) FROM gold.call_records)
        """,
        "gold.call_records by status and sides",
        """
        SELECT status, analytics_events > 0 AS has_analytics, metrics_events > 0 AS has_metrics,
               count(*) AS calls, min_by(concat(user1, ' - ', user2), ts) AS example,
               min_by(left(analytics, 30), ts) AS analytics, min_by(left(metrics, 30), ts) AS metrics
        FROM gold.call_records GROUP BY ALL ORDER BY calls DESC
        """,
    ),
    "sales": _Shown(
        "sum of sales since each product's last tombstone = sum of totals",
        """
        SELECT sum(value), (SELECT sum(total) FROM gold.product_sales)
        FROM silver.sales_events
        LEFT JOIN (SELECT product, partition, max(offset) AS gone
                   FROM silver.sales_events WHERE value IS NULL GROUP BY ALL) USING (product, partition)
        WHERE offset > coalesce(gone, -1)
        """,
        "gold.product_sales and the latest of gold.sales_notifications",
        """
        SELECT product, total, count, max_by(value, offset) AS notified_at, max(crossing) AS crossings
        FROM gold.product_sales LEFT JOIN gold.sales_notifications USING (product)
        GROUP BY ALL ORDER BY total DESC LIMIT 5
        """,
    ),
    "transactions": _Shown(
        "sum of clean amounts = sum of the windows' totals",
        """
        SELECT sum(amount), (SELECT sum(total_amount) FROM gold.user_transactions_5m) FROM silver.transactions
        """,
        "gold.user_transactions_5m, the largest totals",
        """
        SELECT user_id, window_start, total_amount, count
        FROM gold.user_transactions_5m ORDER BY total_amount DESC LIMIT 5
        """,
    ),
}
_LANDED = """
    SELECT partition, offset, timestamp, cast(key AS STRING) AS key, cast(value AS STRING) AS value
    FROM bronze.sales_events ORDER BY offset, partition LIMIT 3
"""
_BY_REASON = """
    SELECT reason.rule, count(*) AS rows, concat_ws(', ', sort_array(collect_set(stream))) AS streams,
           min(reason.message) AS example
    FROM silver.dead_letters LATERAL VIEW explode(reasons) AS reason
    GROUP BY reason.rule ORDER BY rows DESC, rule
"""


def show_layer(layer: LayerName, lake: Lake, settings: Settings, console: Console) -> None:
    """Print some of the rows that a layer has written."""
    spark = lake.spark
    define_views(lake, load(settings))
    if layer == "bronze":
        console.print(Text("bronze.sales_events, the first records", "bold"), _sql(spark, _LANDED))
    elif layer == "silver":
        console.print(Text("dead letters by reason", "bold"), _sql(spark, _BY_REASON))
    elif layer == "gold":
        for shown in _SHOWN.values():
            console.print(Text(shown.title, "bold"), _sql(spark, shown.rows))
    else:
        console.print(Panel(Group(*_redis_lines(settings)), title="Redis", title_align="left", expand=False))
        records = Group(*_kafka_lines(settings))
        title = "Kafka, one record from each topic"
        console.print(Panel(records, title=title, title_align="left", expand=False))


def summarise(lake: Lake, done: Done, console: Console) -> None:
    """Print the results of a demo run. Raises LakehouseError if a stream's row counts do not agree."""
    spark = lake.spark
    console.print()
    table, checked = _books(spark, done)
    console.print(table)
    for line in checked:
        console.print(f"  {line}", soft_wrap=True)
    seconds = ", ".join(f"{layer} {duration:.1f} s" for layer, duration in done.layer_s.items())
    total = sum(summary.acknowledged for summary in done.produced.values())
    pipeline_s = sum(done.layer_s.values())
    console.print(
        f"{total:,} events through all four layers in {pipeline_s:.1f} s ({seconds}): "
        f"{total / pipeline_s:,.0f} events/s (cold Spark, without start-up)",
        style="bold",
    )


def what_next(settings: Settings, console: Console) -> None:
    """Print commands that the user can try next, from any directory."""
    path = f"export PATH={shlex.quote(sysconfig.get_path('scripts'))}:$PATH"
    lines: Sequence[str] = (
        *([] if shutil.which("lakehouse") else [path]),
        f"export LAKEHOUSE_HOME={shlex.quote(str(settings.home.absolute()))}",
        'lakehouse sql "SELECT * FROM gold.metrics_1m ORDER BY p99 DESC LIMIT 10"',
        'lakehouse sql "SELECT offset, reasons FROM silver.dead_letters LIMIT 5" --format json',
        "lakehouse services up      # the demo's Kafka and Redis again",
        "lakehouse run all          # in one terminal: all layers of all streams, live",
        "lakehouse produce sales --rate 1000 --seconds 60   # in another",
        "lakehouse services down",
        "lakehouse serve            # gold over HTTP, at http://127.0.0.1:8080",
    )
    console.print("what to try next (docs/tutorial.md: your own file)", style="bold")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)


def _sql(spark: SparkSession, statement: str) -> Table:
    return as_table(ask(spark, statement, limit=50))


def _books(spark: SparkSession, done: Done) -> tuple[Table, list[str]]:
    table = Table(title="rows of each stream; silver + dead letters = bronze", title_justify="left")
    for heading in ("stream", "produced", "bronze", "silver", "dead letters", "gold", "exported"):
        table.add_column(heading, justify="left" if heading == "stream" else "right")
    checked = []
    for stream in BY_DEFAULT:
        sources = [source.table for source in stream.sources]
        bronze = sum(_count(spark, f"bronze.{name}") for name in sources)
        silver = sum(_count(spark, f"silver.{name}") for name in sources)
        dead = _count(spark, f"silver.dead_letters WHERE stream = '{stream.name}'")
        gold = sum(_count(spark, f"gold.{kept.name}") for kept in stream.tables)
        exports = {f"export.{kept.name}" for kept in stream.tables}
        exported = sum(batch.result.rows for batch in done.batches if batch.query in exports)
        shown, sent = _SHOWN[stream.name], done.produced[stream.name].acknowledged
        expected, found = ask(spark, shown.books, limit=1).rows[0]
        if not bronze == silver + dead == sent or expected != found:
            raise LakehouseError(
                f"the row counts of {stream.name} do not agree: {sent:,} events sent, {bronze:,} in bronze, "
                f"{silver:,} in silver, {dead:,} dead letters; {shown.what}: expected {expected}, "
                f"found {found}"
            )
        figures = (sent, bronze, silver, dead, gold, exported)
        table.add_row(stream.name, *(f"{figure:,}" for figure in figures))
        checked.append(f"{stream.name}: {shown.what}: {_plain(found)}")
    return table, checked


def _plain(figure: Any) -> str:
    return f"{figure:,}" if isinstance(figure, int) else f"{figure.normalize():,f}"


def _count(spark: SparkSession, of_what: str) -> int:
    return int(ask(spark, f"SELECT count(*) FROM {of_what}", limit=1).rows[0][0])  # noqa: S608 - own names


def _redis_lines(settings: Settings) -> Sequence[str]:
    with redis_client(settings.redis.url.get_secret_value(), decode_responses=True) as client:
        lines = [
            f"{sum(1 for _ in client.scan_iter(row_key(kept.name, '*'), count=1000)):>6,} rows of {kept.name}"
            for stream in BY_DEFAULT
            for kept in stream.tables
        ]
        key = latest_key("metrics_1m", "cpu_usage")
        latest = client.hgetall(key)
        service = min(latest)
        return (
            *lines,
            f"each with a time to live of {settings.redis.ttl_s // 3600} h",
            f"HLEN {key} -> {len(latest)} services (HGETALL compares them in one round trip)",
            f"HGET {key} {service} ->",
            latest[service],
        )


def _kafka_lines(settings: Settings) -> Sequence[str]:
    topics = [kept.export.topic for stream in BY_DEFAULT for kept in stream.tables if kept.export.topic]
    return [line for topic in topics for line in _one_record(settings, topic)]


def _one_record(settings: Settings, topic: str) -> Sequence[str]:
    consumer = Consumer(
        settings.kafka.access,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=_KAFKA_TIMEOUT_MS,
    )
    consumer.subscribe([topic])
    try:
        message = next(iter(consumer), None)
        if message is None:
            return [f"{topic}: no records"]
        value = "null" if message.value is None else message.value.decode()
        return f"{topic}: key {message.key.decode()}", f"  {value}"
    finally:
        consumer.close()
