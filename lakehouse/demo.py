"""The main job, end to end on embedded services: what `make demo` shows.

Everything lies under `<home>/demo` and is made anew by each run. The services are stopped at the end; the
tables stay, for `lakehouse sql`.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import redis
from kafka import KafkaConsumer
from pydantic import SecretStr
from pyspark.sql import SparkSession
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from lakehouse import producing
from lakehouse.errors import LakehouseError
from lakehouse.layer import LAYERS, LayerName
from lakehouse.local.services import local_services
from lakehouse.local.services import stop as stop_services
from lakehouse.query import as_table, ask, register
from lakehouse.runner import AVAILABLE_NOW, BatchDone, Stop, run, stopping_on_signals
from lakehouse.samples import metrics as metrics_samples
from lakehouse.samples import spread_times
from lakehouse.session import start_session
from lakehouse.settings import Settings
from lakehouse.sinks import latest_key, row_key
from lakehouse.streams.metrics import METRICS, METRICS_1M
from lakehouse.topics import create_topics

EVENTS = 100_000
MALFORMED, LATE, DUPLICATES = 0.01, 0.02, 0.01
SPAN_S = 600.0
_STEPS = {
    "bronze": "land Kafka records as they came",
    "silver": "clean them, quarantine the rest",
    "gold": "merge one-minute windows",
    "export": "push changed rows to Kafka and Redis",
}
_KAFKA_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class Run:
    """What a demo run did: the producer's summary, and seconds and rows of each layer."""

    produced: producing.Summary
    layer_s: dict[LayerName, float]
    layer_rows: dict[LayerName, int]


def demo(settings: Settings, console: Console) -> None:
    """Run the metrics stream end to end and print what came out.

    Raises LakehouseError for what a user can mend, and where the books do not balance.
    """
    home = settings.home / "demo"
    update = {
        "home": home,
        "lake": str(home / "lake"),
        "topics": {},
        # Small micro-batches, so that there are several to see and later ones have a watermark.
        "max_records_per_batch": EVENTS // 4,
        "max_bytes_per_batch": "2m",
    }
    settings = settings.model_copy(update=update)
    stop_services(settings)  # those of a run before, which would go on without their files
    shutil.rmtree(home, ignore_errors=True)
    console.rule("lakehouse demo: metrics from Kafka to gold and out again")
    console.print(f"everything lies under {home}", highlight=False, markup=False)
    began = time.monotonic()
    with local_services(
        settings, on_progress=lambda message: console.print(f"  {message}", highlight=False)
    ) as at:
        update = {"kafka_bootstrap_servers": at.kafka, "redis_url": SecretStr(at.redis)}
        settings = settings.model_copy(update=update)
        create_topics(at.kafka, dict.fromkeys(METRICS.topics, settings.topic_partitions))
        produced = _produce(settings, console)
        console.print("  starting Spark", highlight=False)
        with start_session(settings, "lakehouse demo") as spark, stopping_on_signals(spark) as stop:
            done = _run_layers(spark, settings, produced, console, stop)
            if stop.requested:
                console.print("stopped; the demo can be run again")
                return
            _summarise(spark, settings, done, console)
    console.print(f"services stopped; the demo took {time.monotonic() - began:.0f} s\n", highlight=False)
    _what_next(settings, console)


def _produce(settings: Settings, console: Console) -> producing.Summary:
    times = spread_times(EVENTS, end_ms=int(time.time() * 1000), span_s=SPAN_S)
    samples = metrics_samples.samples(
        EVENTS,
        times,
        seed=1,
        malformed=MALFORMED,
        late=LATE,
        duplicates=DUPLICATES,
        allowed_lateness_s=settings.allowed_lateness_s,
        ahead_s=SPAN_S + settings.future_tolerance_s + 3600,
    )
    with _progress(console) as progress:
        task = progress.add_task("produce: metrics-events", total=EVENTS)
        summary = producing.produce(
            settings.kafka_bootstrap_servers,
            METRICS.sources[0].topic,
            samples,
            total=EVENTS,
            on_progress=lambda state: progress.update(task, completed=state.sent),
        )
    if summary.failed:
        raise LakehouseError(
            f"{summary.failed:,} of {EVENTS:,} events were not delivered: {summary.first_error}"
        )
    return summary


def _run_layers(
    spark: SparkSession, settings: Settings, produced: producing.Summary, console: Console, stop: Stop
) -> Run:
    seconds: dict[LayerName, float] = {}
    rows: dict[LayerName, int] = {}
    expected = produced.acknowledged
    with _progress(console) as progress:
        for layer in LAYERS:
            task = progress.add_task(f"{layer}: {_STEPS[layer]}", total=expected or None)
            began = time.monotonic()
            results: list[BatchDone] = []
            run(
                spark,
                [METRICS],
                [layer],
                settings,
                trigger=AVAILABLE_NOW,
                on_batch=partial(_advance, progress, task, results),
                stop=stop,
            )
            seconds[layer] = time.monotonic() - began
            rows[layer] = sum(done.result.rows for done in results)
            progress.update(task, total=rows[layer], completed=rows[layer])
            # What a layer passes on is the most that the next one can get.
            expected = sum(next(iter(done.result.written.values()), 0) for done in results)
    return Run(produced, seconds, rows)


def _advance(progress: Progress, task: TaskID, results: list[BatchDone], done: BatchDone) -> None:
    results.append(done)
    progress.advance(task, done.result.rows)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("  {task.description:<46}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield progress


def _summarise(spark: SparkSession, settings: Settings, done: Run, console: Console) -> None:
    register(spark, settings)
    console.print()
    console.print(_layers_table(spark, done))
    console.print("[bold]dead letters by reason[/]", _sql(spark, _BY_REASON))
    console.print("[bold]gold.metrics_1m, the latest windows of one metric[/]", _sql(spark, _GOLD_ROWS))
    console.print(Panel(_redis_text(settings), title="Redis", title_align="left"))
    console.print(Panel(_kafka_text(settings), title=f"Kafka, {METRICS_1M.export.topic}", title_align="left"))
    pipeline_s = sum(done.layer_s.values())
    console.print(
        f"{done.layer_rows['bronze']:,} events through all four layers in {pipeline_s:.1f} s: "
        f"[bold]{done.layer_rows['bronze'] / pipeline_s:,.0f} events/s[/] (a cold Spark, start-up left out)",
        highlight=False,
    )


_BY_REASON = """
    SELECT reason.rule, count(*) AS rows, min(reason.message) AS example
    FROM silver.dead_letters LATERAL VIEW explode(reasons) AS reason
    GROUP BY reason.rule ORDER BY rows DESC, rule
"""
_GOLD_ROWS = """
    SELECT service_id, window_start, count, round(avg, 1) AS avg, round(stddev, 1) AS stddev,
           p50, p95, p99, is_final
    FROM gold.metrics_1m WHERE metric_name = 'request_latency_ms'
    ORDER BY window_start DESC, service_id LIMIT 5
"""
_COUNTS = """
    SELECT (SELECT count(*) FROM bronze.metrics_events), (SELECT count(*) FROM silver.metrics_events),
           (SELECT count(*) FROM silver.dead_letters), (SELECT count(*) FROM gold.metrics_1m),
           (SELECT sum(count) FROM gold.metrics_1m)
"""


def _sql(spark: SparkSession, statement: str) -> Table:
    return as_table(ask(spark, statement, limit=50))


def _layers_table(spark: SparkSession, done: Run) -> Table:
    bronze, silver, dead, gold, counted = ask(spark, _COUNTS, limit=1).rows[0]
    if bronze != silver + dead or counted != silver or bronze != done.produced.acknowledged:
        raise LakehouseError(
            f"the books do not balance: {done.produced.acknowledged:,} events sent, {bronze:,} in bronze, "
            f"{silver:,} in silver, {dead:,} dead letters, {counted:,} counted in gold"
        )
    kinds = done.produced.kinds
    late = sum(kinds.get(kind, 0) for kind in ("late_within", "late_beyond"))
    malformed = sum(count for kind, count in kinds.items() if kind.startswith("malformed"))
    sent = f"{malformed:,} malformed, {late:,} late, {kinds.get('duplicate', 0):,} sent twice (both count)"
    table = Table(title="rows per layer", title_justify="left")
    for heading in ("", "rows", "seconds", "what"):
        table.add_column(heading, justify="right" if heading in {"rows", "seconds"} else "left")
    seconds = {layer: f"{duration:.1f}" for layer, duration in done.layer_s.items()}
    table.add_row("produced", f"{done.produced.acknowledged:,}", f"{done.produced.duration_s:.1f}", sent)
    table.add_row("bronze", f"{bronze:,}", seconds["bronze"], "as they came")
    table.add_row("silver", f"{silver:,}", seconds["silver"], "clean")
    table.add_row("dead letters", f"{dead:,}", "", f"silver + dead letters = {silver + dead:,} = bronze")
    table.add_row(
        "gold", f"{gold:,}", seconds["gold"], f"windows; their counts add up to {counted:,} = silver"
    )
    table.add_row("export", f"{done.layer_rows['export']:,}", seconds["export"], "rows to Kafka and to Redis")
    return table


def _redis_text(settings: Settings) -> str:
    with redis.Redis.from_url(settings.redis_url.get_secret_value(), decode_responses=True) as client:
        rows = sum(1 for _ in client.scan_iter(row_key(METRICS_1M.name, "*"), count=1000))
        key = latest_key(METRICS_1M.name, "cpu_usage")
        latest = client.hgetall(key)
        service = min(latest)
        return (
            f"{rows:,} rows, each with a time to live of {settings.redis_ttl_s // 3600} h\n"
            f"HLEN {key} -> {len(latest)} services (HGETALL compares them in one round trip)\n"
            f"HGET {key} {service} ->\n{latest[service]}"
        )


def _kafka_text(settings: Settings) -> str:
    consumer = KafkaConsumer(
        METRICS_1M.export.topic,
        bootstrap_servers=settings.kafka_bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=_KAFKA_TIMEOUT_MS,
    )
    try:
        message = next(iter(consumer))
        where = f"partition {message.partition}, offset {message.offset}"
        return f"key {message.key.decode()}, {where}\n{message.value.decode()}"
    finally:
        consumer.close()


def _what_next(settings: Settings, console: Console) -> None:
    lines: Sequence[str] = (
        f"export LAKEHOUSE_HOME={shlex.quote(str(settings.home))}",
        '.venv/bin/lakehouse sql "SELECT * FROM gold.metrics_1m ORDER BY p99 DESC LIMIT 10"',
        '.venv/bin/lakehouse sql "SELECT offset, reasons FROM silver.dead_letters LIMIT 5" --format json',
        ".venv/bin/lakehouse services up      # the demo's Kafka and Redis again",
        ".venv/bin/lakehouse run all          # in one terminal: all layers, live",
        ".venv/bin/lakehouse produce metrics --rate 1000 --seconds 60   # in another",
        ".venv/bin/lakehouse services down",
    )
    console.print("[bold]what to try next[/]")
    for line in lines:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
