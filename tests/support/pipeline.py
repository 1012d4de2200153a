"""Helpers for tests that run the real pipeline: send, land, run, read back, go back in time.

Tables and queries are named as users name them, for example `gold.metrics_1m`. If a test does not name a
stream or source, the helpers use metrics_1m with the test's settings.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from kafka import KafkaConsumer, KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from lakehouse.common.record_lines import Record
from lakehouse.engine.layers import LayerName, bronze
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake
from lakehouse.streams.definition import Source, Stream
from lakehouse.testing import folding
from tests.support.streams import METRICS, METRICS_1M, under

SOURCE = METRICS.sources[0]
STREAM = replace(METRICS, gold=(METRICS_1M,))
BRONZE, SILVER, GOLD = "bronze.metrics_events", "silver.metrics_events", "gold.metrics_1m"
DEAD_LETTERS = "silver.dead_letters"
TABLES = (BRONZE, SILVER, DEAD_LETTERS, GOLD)

Coordinates = tuple[str, int, int]
Row = dict[str, Any]


Raw = Record


def send(settings: Settings, records: Iterable[Raw], source: Source = SOURCE) -> None:
    """Send the records to the source's topic in order, and wait until the broker has acknowledged them."""
    topic = settings.topic(source.topic)
    create_topics(settings.kafka.access, {topic: settings.kafka.topic_partitions})
    producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers, acks="all")
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
        producer.flush(120)
        for future in sent:
            future.get(120)
    finally:
        producer.close()


def read_topic(bootstrap_servers: str, topic: str, isolation_level: str = "read_committed") -> list[Any]:
    """Return every record of a topic, in the order of each partition, with a client outside the pipeline.

    If there is no such topic, there are none.
    """
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        auto_offset_reset="earliest",
        group_id=None,
        isolation_level=isolation_level,
    )
    try:
        if not consumer.partitions_for_topic(topic):
            return []
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
    source: Source = SOURCE,
) -> None:
    """Append records to the bronze table without Kafka; each part is one commit with one file.

    The first part lands at `landed_at`, or just after the table's last commit, and each later part just after
    the one before it. If `max_bytes_per_batch` is one byte, each part is then a micro-batch of silver.
    Offsets increase from `first_offset` in the order of the records, all in partition 0, unless a record
    specifies its own.
    """
    path, query = Lake(spark, settings.lake).ensure(bronze.spec(source)), bronze.spec(source).qualified_name
    for cut in cuts:
        last = tables.transactions(spark, path).get(f"{query} landed")
        at = max(micros(landed_at), 0 if last is None else last + 1)
        moment = tables.from_micros(at)
        rows = landed(settings, cut, landed_at=moment, first_offset=first_offset, source=source)
        first_offset += len(cut)
        frame = local_frame(spark, rows, bronze.SCHEMA).coalesce(1)
        tables.append(frame, path, [tables.Move(f"{query} landed", last, at)])


def landed(
    settings: Settings,
    records: Iterable[Raw],
    *,
    landed_at: datetime,
    first_offset: int = 0,
    source: Source = SOURCE,
) -> list[tuple[Any, ...]]:
    """Return records as their rows in bronze, in the order of its columns."""
    topic = settings.topic(source.topic)
    numbered = (
        replace(
            record,
            topic=topic,
            partition=record.partition or 0,
            offset=offset if record.offset is None else record.offset,
            timestamp_ms=micros(landed_at) // 1000 if record.timestamp_ms is None else record.timestamp_ms,
        )
        for offset, record in enumerate(records, first_offset)
    )
    return folding.landed(numbered, landed_at)


def run_layers(
    spark: SparkSession,
    settings: Settings,
    *layers: LayerName,
    stream: Stream | None = None,
    now: datetime | None = None,
    is_backfill: bool = False,
) -> list[BatchDone]:
    """Run the layers until they have caught up, and return the micro-batches that were written.

    `now` is the fixed time of the clock, for streams that use a clock.
    """
    done: list[BatchDone] = []
    clock: dict[str, Any] = {} if now is None else {"clock": lambda: now}
    run(
        Lake(spark, settings.lake),
        [stream or under(settings, STREAM)],
        layers,
        settings,
        RunOptions(AVAILABLE_NOW, on_batch=done.append, is_backfill=is_backfill, **clock),
    )
    return done


@contextmanager
def running(
    lake: Lake,
    streams: Sequence[Stream],
    layers: Sequence[LayerName],
    settings: Settings,
    options: RunOptions,
) -> Iterator[list[BaseException]]:
    """Run layers live in a thread during the block, then stop them; the list contains any failure."""
    stop, failures = Stop(), list[BaseException]()

    def go() -> None:
        try:
            run(lake, streams, layers, settings, replace(options, stop=stop))
        except BaseException as failure:  # noqa: BLE001 - told to the test
            failures.append(failure)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield failures
    finally:
        stop.request()
        thread.join(300)
    assert not thread.is_alive()


def path_of(settings: Settings, table: str) -> Path:
    """Return the path of a table in the local lake."""
    return Path(settings.lake, *table.split("."))


def frame_of(spark: SparkSession, settings: Settings, table: str) -> DataFrame:
    """Return a table's rows, with timestamps in microseconds, independent of the driver's time zone."""
    return in_micros(spark.read.format("delta").load(str(path_of(settings, table))))


def in_micros(frame: DataFrame) -> DataFrame:
    """Return the rows with timestamps as microseconds since the epoch."""
    times = [column.name for column in frame.schema.fields if isinstance(column.dataType, TimestampType)]
    return frame.withColumns({name: F.unix_micros(name) for name in times})


def rows_of(settings: Settings, table: str) -> list[Row]:
    """Return a table's rows as dicts, read without Spark, with timestamps in microseconds."""
    rows: list[Row] = DeltaTable(str(path_of(settings, table))).to_pyarrow_table().to_pylist()
    return [with_micros(row) for row in rows]


def with_micros(row: Row) -> Row:
    """Return a row with its timestamps as microseconds since the epoch."""
    return {
        name: micros(value.replace(tzinfo=value.tzinfo or UTC)) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def coordinates_of(row: Mapping[str, Any]) -> Coordinates:
    """Return the Kafka record that a row of bronze, silver or the dead letters comes from."""
    return row["topic"], row["partition"], row["offset"]


def version_of(settings: Settings, table: str) -> int:
    """Return a table's version, based on the file names in its log."""
    return max(_numbers(path_of(settings, table) / "_delta_log", r"^(\d{20})\.json$"), default=-1)


def versions(settings: Settings, names: Iterable[str] = TABLES) -> dict[str, int]:
    """Return the versions of the tables."""
    return {table: version_of(settings, table) for table in names}


def noted(settings: Settings, table: str) -> dict[str, int]:
    """Return the positions of queries that a table records, read without Spark."""
    log, found = path_of(settings, table) / "_delta_log", dict[str, int]()
    for version in range(version_of(settings, table) + 1):
        for line in (log / f"{version:020}.json").read_text(encoding="utf-8").split("\n"):
            if '"txn"' in line:
                one = json.loads(line)["txn"]
                found[one["appId"]] = one["version"]
    return found


def remove(path: Path) -> None:
    """Remove a table while a running query may be writing a file to it."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def forget_commits(path: str | Path, before: int) -> None:
    """Remove a table's commits before a version, like log retention after a checkpoint."""
    for version in range(before):
        Path(path, "_delta_log", f"{version:020}.json").unlink()


def log_checkpoints(path: str | Path) -> list[int]:
    """Return the versions for which a table's log has checkpoints."""
    return sorted(int(file.name[:20]) for file in Path(path, "_delta_log").glob("*.checkpoint*.parquet"))


def await_(condition: Callable[[], object], timeout_s: float = 300) -> None:
    """Wait until the condition holds; fail if it does not hold in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def micros(moment: datetime) -> int:
    """Return a time as microseconds since the epoch, as in the returned rows."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def utc(text: str) -> datetime:
    """Return an ISO 8601 time without an offset as UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _numbers(directory: Path, pattern: str) -> Iterator[int]:
    if directory.is_dir():
        for name in directory.iterdir():
            if found := re.match(pattern, name.name):
                yield int(found[1])
