"""Helpers of the tests that run the metrics pipeline for real: send, land, run, read back, go back in time.

A table is named as users name it, `gold.metrics_1m`; a query too, and its checkpoint lies under that name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from lakehouse import bronze, tables
from lakehouse.layer import LayerName
from lakehouse.runner import AVAILABLE_NOW, BatchDone, run
from lakehouse.settings import Settings
from lakehouse.streams.metrics import METRICS
from lakehouse.topics import create_topics
from tests.oracle import PERCENTILES, WINDOW_US, Judged, Statistics, judge_record, metrics_1m, rank_error

SOURCE = METRICS.sources[0]
BRONZE, SILVER, GOLD = "bronze.metrics_events", "silver.metrics_events", "gold.metrics_1m"
DEAD_LETTERS = "silver.dead_letters"
TABLES = (BRONZE, SILVER, DEAD_LETTERS, GOLD)

# What KLL gives beyond k values is no bound but a confidence: at k = 200 one quantile's rank is within 1.33 %
# in 99 of 100 cases, both ends of a range within 1.65 %. Twice that is never seen (more than five sigma).
RANK_ERROR_AT_200 = 0.033
RELATIVE = 1e-9
_TINY = 1e-150  # its square is about where squares lose their digits to underflow

Coordinates = tuple[str, int, int]
Row = dict[str, Any]


@dataclass(frozen=True)
class Raw:
    """A Kafka record to send or to land; without `timestamp_ms` it has the time of sending or landing."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def send(settings: Settings, records: Iterable[Raw]) -> None:
    """Put the records into the stream's input topic, in order, and wait until the broker has them."""
    topic = settings.topic(SOURCE.topic)
    create_topics(settings.kafka_bootstrap_servers, {topic: settings.topic_partitions})
    producer = KafkaProducer(bootstrap_servers=settings.kafka_bootstrap_servers, acks="all")
    try:
        sent = [
            producer.send(
                topic,
                record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        producer.flush(30)
        for future in sent:
            future.get(30)
    finally:
        producer.close()


def read_topic(settings: Settings, topic: str) -> list[Any]:
    """Return every record of a topic, by a client that shares no code with the pipeline."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=settings.kafka_bootstrap_servers,
        auto_offset_reset="earliest",
        group_id=None,
        isolation_level="read_committed",
    )
    try:
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(list(consumer.assignment()))
        records: list[Any] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            records += [record for batch in consumer.poll(timeout_ms=1000).values() for record in batch]
        return records
    finally:
        consumer.close()


def land(
    spark: SparkSession,
    settings: Settings,
    cuts: Sequence[Sequence[Raw]],
    *,
    landed_at: datetime,
    first_offset: int = 0,
) -> None:
    """Append records to the bronze table without Kafka, each cut as one commit of one file.

    With `max_bytes_per_batch` of a byte, each cut is then a micro-batch of silver. Offsets go up from
    `first_offset` in the order of the records, all of partition 0 unless a record says otherwise.
    """
    path = tables.ensure(spark, settings.lake, bronze.spec(SOURCE))
    topic, offset = settings.topic(SOURCE.topic), first_offset
    for cut in cuts:
        rows = []
        for record in cut:
            stamp = landed_at if record.timestamp_ms is None else _from_ms(record.timestamp_ms)
            headers = [tuple(header) for header in record.headers] or None
            coordinates = (topic, record.partition or 0, offset)
            rows.append((record.key, record.value, headers, *coordinates, stamp, 0, landed_at))
            offset += 1
        frame = spark.createDataFrame(rows, bronze.SCHEMA).coalesce(1)
        frame.write.format("delta").mode("append").save(path)


def run_layers(spark: SparkSession, settings: Settings, *layers: LayerName) -> list[BatchDone]:
    """Run the layers until caught up and return the micro-batches that were written."""
    done: list[BatchDone] = []
    run(spark, [METRICS], layers, settings, trigger=AVAILABLE_NOW, on_batch=done.append)
    return done


def path_of(settings: Settings, table: str) -> Path:
    """Return where a table of the local lake lies."""
    return Path(settings.lake, *table.split("."))


def frame_of(spark: SparkSession, settings: Settings, table: str) -> DataFrame:
    """Return a table's rows, timestamps as microseconds: what the driver's time zone cannot change."""
    frame = spark.read.format("delta").load(str(path_of(settings, table)))
    times = [column.name for column in frame.schema.fields if isinstance(column.dataType, TimestampType)]
    return frame.withColumns({name: F.unix_micros(name) for name in times})


def rows_of(spark: SparkSession, settings: Settings, table: str) -> list[Row]:
    """Return a table's rows, each as a dict, timestamps as microseconds since the epoch."""
    return [row.asDict(recursive=True) for row in frame_of(spark, settings, table).collect()]


def coordinates_of(row: Mapping[str, Any]) -> Coordinates:
    """Return which Kafka record a row of bronze, silver or the dead letters comes from."""
    return row["topic"], row["partition"], row["offset"]


def version_of(settings: Settings, table: str) -> int:
    """Return a table's version by the file names of its log: nothing of Delta is asked."""
    return max(_numbers(path_of(settings, table) / "_delta_log", r"^(\d{20})\.json$"), default=-1)


def versions(settings: Settings) -> dict[str, int]:
    """Return the versions of all tables."""
    return {table: version_of(settings, table) for table in TABLES}


def checkpoint_of(settings: Settings, query: str) -> Path:
    """Return a query's checkpoint directory."""
    return Path(settings.lake, "_checkpoints", query)


def planned(settings: Settings, query: str) -> list[int]:
    """Return the numbers of the micro-batches that a query has begun."""
    return sorted(_numbers(checkpoint_of(settings, query) / "offsets", r"^(\d+)$"))


def committed(settings: Settings, query: str) -> list[int]:
    """Return the numbers of the micro-batches that a query has noted as done."""
    return sorted(_numbers(checkpoint_of(settings, query) / "commits", r"^(\d+)$"))


def forget_last_commit(settings: Settings, query: str) -> int:
    """Bring back the moment after a micro-batch's writes and before its checkpoint; return its number."""
    last = committed(settings, query)[-1]
    commits = checkpoint_of(settings, query) / "commits"
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last


def judge_batches(
    batches: Iterable[Iterable[Mapping[str, Any]]], settings: Settings
) -> dict[Coordinates, Judged]:
    """Return the oracle's verdict on every bronze row, the rows being given by silver's micro-batches."""
    verdicts: dict[Coordinates, Judged] = {}
    watermark_us: int | None = None
    for batch in batches:
        judged = {
            coordinates_of(row): judge_record(
                row["value"],
                row["timestamp"] // 1000,
                row["ingested_at"],
                watermark_us,
                future_tolerance_s=settings.future_tolerance_s,
            )
            for row in batch
        }
        verdicts |= judged
        times = [verdict.event_time_us for verdict in verdicts.values() if not verdict.reasons]
        watermark_us = max(times) - settings.allowed_lateness_s * 1_000_000 if times else None
    return verdicts


def accepted(verdicts: Mapping[Coordinates, Judged]) -> list[Judged]:
    """Return the clean records of some verdicts."""
    return [verdict for verdict in verdicts.values() if not verdict.reasons]


def gold_differences(rows: Sequence[Row], clean: Iterable[Judged], settings: Settings) -> list[str]:
    """Return in what the rows of metrics_1m are not what the clean records make; empty where they are."""
    records = list(clean)
    expected = metrics_1m(records)
    found = {(row["service_id"], row["metric_name"], row["window_start"]): row for row in rows}
    front_us = max((record.event_time_us for record in records), default=0)
    final_until_us = front_us - settings.grace_s * 1_000_000
    differences = [f"{len(rows) - len(found)} keys too many"] if len(rows) > len(found) else []
    differences += [f"{key}: no such window" for key in found.keys() - expected.keys()]
    differences += [f"{key}: missing" for key in expected.keys() - found.keys()]
    for key in expected.keys() & found.keys():
        row, window_end = found[key], key[2] + WINDOW_US
        exact = {"window_end": window_end, "is_final": window_end <= final_until_us}
        exact["last_event_time"] = expected[key]["last_event_time_us"]
        differences += [f"{key}: {text}" for text in _row_differences(row, expected[key], exact, settings)]
    return differences


def same_silver(rows: Iterable[Row], verdicts: Mapping[Coordinates, Judged]) -> bool:
    """Tell whether silver's rows are the clean records, once each and field by field."""
    found = sorted(
        (
            *coordinates_of(row),
            row["service_id"],
            row["metric_name"],
            row["value"],
            row["environment"] or "",
            row["event_time"],
        )
        for row in rows
    )
    return found == sorted(
        (*at, one.service_id, one.metric_name, one.value, one.environment or "", one.event_time_us)
        for at, one in verdicts.items()
        if not one.reasons
    )


def same_dead_letters(rows: Iterable[Row], verdicts: Mapping[Coordinates, Judged]) -> bool:
    """Tell whether the dead letters are the refused records, once each and for the right reasons."""
    found = sorted((coordinates_of(row), sorted(_rules(row["reasons"]))) for row in rows)
    return found == sorted(
        (at, sorted((rule, column or "") for rule, column in one.reasons))
        for at, one in verdicts.items()
        if one.reasons
    )


def utc(text: str) -> datetime:
    """Return an ISO 8601 time without offset as UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _row_differences(
    row: Row, expected: Statistics, exact: Mapping[str, int | bool], settings: Settings
) -> Iterator[str]:
    for name, value in {
        **exact,
        "count": expected["count"],
        "min": expected["min"],
        "max": expected["max"],
    }.items():
        if row[name] != value:
            yield f"{name} is {row[name]}, not {value}"
    # A sum of floats is as exact as its largest terms allow, a deviation as the largest values do.
    values = expected["values"]
    rounding = 8 * len(values) * math.ulp(1.0)
    size, root = (
        math.fsum(map(abs, values)),
        math.sqrt(math.fsum(value * value for value in values) / len(values)),
    )
    least = 8 * len(values) * math.ulp(0.0)  # the step between two numbers where they are smallest
    slack = {
        "sum": rounding * size + least,
        "avg": rounding * size / len(values) + least,
        "stddev": rounding * root + _TINY,
    }
    for name, absolute in slack.items():
        if not _close(row[name], expected[name], absolute):  # type: ignore[literal-required]
            yield f"{name} is {row[name]}, not {expected[name]}"  # type: ignore[literal-required]
    square = None if row["stddev"] is None else row["stddev"] ** 2
    if not _close(row["variance"], square, _TINY**2):
        yield f"variance is {row['variance']}, the square of stddev {square}"
    allowed = 0.0 if len(values) <= settings.quantile_k else RANK_ERROR_AT_200 * 200 / settings.quantile_k
    for name, rank in PERCENTILES.items():
        if row[name] not in values or rank_error(values, rank, row[name]) > allowed:
            yield f"{name} is {row[name]}, not {expected[name]} within {allowed:.3f} of rank"  # type: ignore[literal-required]


def _close(found: float | None, expected: float | None, absolute: float) -> bool:
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=RELATIVE, abs_tol=absolute)


def _rules(reasons: Iterable[Mapping[str, str | None]]) -> list[tuple[str, str]]:
    return [(reason["rule"] or "", reason["column"] or "") for reason in reasons]


def _from_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _numbers(directory: Path, pattern: str) -> Iterator[int]:
    if directory.is_dir():
        for name in directory.iterdir():
            if found := re.match(pattern, name.name):
                yield int(found[1])
