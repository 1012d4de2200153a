"""One story end to end over a real Kafka: what is sent, landed and refused, and what gold makes of it.

The story runs once, chapter by chapter. After each chapter, all three layers run until they catch up.

    prime       two events, one from now and one from eight days ago
    samples     two events in Kafka transactions, one of them aborted; then 5,000 sample events, some
                malformed, late or repeated, and some handwritten records
    nothing     no records
    refused     two records that silver refuses
    later       one event from another service, three minutes ahead of all others
    late        one event for a window that has long been final
    again       no records
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pyspark.sql import SparkSession

from lakehouse.dev.samples import spread_times
from lakehouse.dev.samples.metrics import samples
from lakehouse.dev.samples.mixing import Shares
from lakehouse.engine.runtime.runner import BatchDone, RunOptions, run
from lakehouse.engine.runtime.signals import Stop
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from tests.oracles.judging import Judged
from tests.oracles.metrics import Metric, rank_error
from tests.support import pipeline, verdicts
from tests.support.pipeline import (
    BRONZE,
    DEAD_LETTERS,
    GOLD,
    SILVER,
    SOURCE,
    STREAM,
    TABLES,
    Coordinates,
    Raw,
    Row,
)
from tests.support.settings import MakeSettings
from tests.support.streams import key_of

DAY_MS = 24 * 3600 * 1000
HOT_EVENTS = 2_000  # more values than a sketch keeps exactly
KEY = ("service_id", "metric_name", "window_start")
HOT = "hot-service"


def event(service: str, time_ms: int, value: float = 1.0) -> Raw:
    record = {"serviceId": service, "metricName": "cpu_usage", "value": value, "timestamp": time_ms}
    return Raw(json.dumps(record, ensure_ascii=False).encode(), key=service.encode())


@dataclass
class Chapter:
    """The outcome of a chapter: its micro-batches, the tables' versions and their rows."""

    batches: list[BatchDone]
    versions: dict[str, int]
    gold: list[Row]
    bronze: list[Row]


@dataclass
class Story:
    spark: SparkSession
    settings: Settings
    prime_ms: int
    chapters: dict[str, Chapter] = field(default_factory=dict)

    def tell(self, chapter: str, records: list[Raw]) -> None:
        pipeline.send(self.settings, records)
        batches = pipeline.run_layers(self.spark, self.settings, "bronze", "silver", "gold")
        known = {pipeline.coordinates_of(row) for told in self.chapters.values() for row in told.bronze}
        landed = pipeline.rows_of(self.settings, BRONZE)
        self.chapters[chapter] = Chapter(
            batches,
            pipeline.versions(self.settings),
            self.rows(GOLD),
            [row for row in landed if pipeline.coordinates_of(row) not in known],
        )

    def rows(self, table: str) -> list[Row]:
        return pipeline.rows_of(self.settings, table)

    def judged(self, *names: str) -> dict[Coordinates, Judged]:
        """Return the oracle's verdicts on the chapters' records. A chapter was one micro-batch of silver."""
        told = (self.chapters[name].bronze for name in names or self.chapters)
        return verdicts.judge_batches((rows for rows in told if rows), self.settings)


def by_hand(now_ms: int) -> list[Raw]:
    """Return what the samples lack: headers, no key, no timestamp, a given Kafka timestamp, a busy window."""
    no_time = b'{"serviceId":"by-hand","metricName":"cpu_usage","value":2}'
    return [
        Raw(no_time, headers=(("trace", b"\x00\xff"), ("trace", b"again"), ("", b""))),
        Raw(no_time, key=b"\xff\x00", timestamp_ms=now_ms - 30_000, partition=3),
        Raw(b"\xc3\x28", key="schlüssel".encode(), headers=(("ключ", "значение".encode()),)),
        Raw(None, key=b"tombstone", headers=(("why", b"gone"),), timestamp_ms=1),
        Raw(b"", key=b""),
        *busy(now_ms // 60_000 * 60_000 - 120_000),
    ]


def busy(start_ms: int) -> list[Raw]:
    """Return a minute of events with more values than a sketch keeps exactly."""
    return [event(HOT, start_ms + n * 97 % 60_000, (n * 7919 % 1009) / 7) for n in range(HOT_EVENTS)]


def send_in_transaction(settings: Settings, record: Raw, end: Callable[[KafkaProducer], None]) -> None:
    """Send a record in a transaction of its own, which `end` commits or aborts."""
    producer = KafkaProducer(
        bootstrap_servers=settings.kafka.bootstrap_servers, transactional_id=f"tests-{time.time_ns()}"
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(settings.topic(SOURCE.topic), record.value, key=record.key).get(120)
        end(producer)
    finally:
        producer.close()


def widen(settings: Settings, partitions: int) -> None:
    """Give the topic `partitions` partitions in all, and wait until clients see them."""
    topic = settings.topic(SOURCE.topic)
    admin = KafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers)
    try:
        admin.create_partitions({topic: partitions})
        pipeline.await_(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == partitions)
    finally:
        admin.close()


@pytest.fixture(scope="module")
def story(spark: SparkSession, module_settings: Settings) -> Story:
    prime_ms = int(time.time() * 1000)
    told = Story(spark, module_settings, prime_ms)
    told.tell("prime", [event("prime", prime_ms), event("prime", prime_ms - 8 * DAY_MS)])
    now_ms = int(time.time() * 1000)  # close to Kafka's timestamps: prime may take a minute
    times = spread_times(5000, end_ms=now_ms - 1000, span_s=900)
    sampled = samples(5000, times, seed=11, shares=Shares(malformed=0.03, late=0.05, duplicates=0.02))
    send_in_transaction(module_settings, event("aborted", prime_ms), KafkaProducer.abort_transaction)
    send_in_transaction(module_settings, event("committed", prime_ms), KafkaProducer.commit_transaction)
    told.tell("samples", [*(Raw(one.value, one.key) for one in sampled), *by_hand(now_ms)])
    told.tell("nothing", [])
    told.tell("refused", [Raw(b"not JSON", key=b"x"), event("prime", prime_ms - 8 * DAY_MS)])
    told.tell("later", [event("later", now_ms + 180_000)])
    told.tell("late", [event(HOT, now_ms // 60_000 * 60_000 - 120_000, value=-5.0)])
    told.tell("again", [])
    return told


def test_bronze_holds_every_record_byte_for_byte(story: Story) -> None:
    sent = pipeline.read_topic(story.settings.kafka.bootstrap_servers, story.settings.topic(SOURCE.topic))

    landed = story.rows(BRONZE)

    assert len(landed) == 2 + 1 + 5000 + HOT_EVENTS + 5 + 2 + 1 + 1
    names = ("topic", "partition", "offset", "key", "value", "timestamp", "timestamp_type")
    assert sorted(tuple(row[name] for name in names) for row in landed) == sorted(
        (one.topic, one.partition, one.offset, one.key, one.value, one.timestamp * 1000, one.timestamp_type)
        for one in sent
    )


def test_bronze_holds_headers_in_order_and_null_for_none(story: Story) -> None:
    sent = pipeline.read_topic(story.settings.kafka.bootstrap_servers, story.settings.topic(SOURCE.topic))

    headers = {pipeline.coordinates_of(row): row["headers"] for row in story.rows(BRONZE)}

    assert {at: [(one["key"], one["value"]) for one in found] for at, found in headers.items() if found} == {
        (one.topic, one.partition, one.offset): [tuple(header) for header in one.headers]
        for one in sent
        if one.headers
    }
    assert sum(found is not None for found in headers.values()) == 3


def test_records_of_an_aborted_transaction_never_land(story: Story) -> None:
    topic = story.settings.topic(SOURCE.topic)
    there = pipeline.read_topic(story.settings.kafka.bootstrap_servers, topic, "read_uncommitted")

    landed = {row["value"] for row in story.rows(BRONZE)}

    aborted, committed = (event(name, story.prime_ms).value for name in ("aborted", "committed"))
    assert {aborted, committed} <= {record.value for record in there}
    assert aborted not in landed
    assert committed in landed


def test_every_record_is_in_silver_or_in_the_dead_letters_and_in_one_of_them_only(story: Story) -> None:
    bronze, clean, dead = (
        [pipeline.coordinates_of(row) for row in story.rows(table)]
        for table in (BRONZE, SILVER, DEAD_LETTERS)
    )

    assert Counter(clean) + Counter(dead) == Counter(bronze)
    assert max(Counter(bronze).values()) == 1
    assert len(dead) > 180


def test_every_verdict_is_the_oracles(story: Story) -> None:
    judged = story.judged()

    rules = Counter(rule for verdict in judged.values() for rule, _ in verdict.reasons)
    assert rules["late"] > 50  # otherwise the test proves nothing
    assert len(rules) >= 11
    assert verdicts.same_silver(story.rows(SILVER), judged)
    assert verdicts.same_dead_letters(story.rows(DEAD_LETTERS), judged)


def test_nothing_is_late_in_the_first_micro_batch_but_it_is_in_the_second(story: Story) -> None:
    eight_days_ago = (story.prime_ms - 8 * DAY_MS) * 1000

    early = [row for row in story.rows(SILVER) if row["event_time"] == eight_days_ago]
    late = [
        row
        for row in story.rows(DEAD_LETTERS)
        if row["value"] == event("prime", eight_days_ago // 1000).value
    ]

    assert [row["service_id"] for row in early] == ["prime"]
    assert [[reason["rule"] for reason in row["reasons"]] for row in late] == [["late"]]


def test_a_dead_letter_is_the_raw_record_with_its_identity_and_origin(story: Story) -> None:
    raw = {pipeline.coordinates_of(row): row for row in story.rows(BRONZE)}

    for row in story.rows(DEAD_LETTERS):
        topic, partition, offset = at = pipeline.coordinates_of(row)
        assert [row["key"], row["value"], row["headers"], row["kafka_timestamp"]] == [
            raw[at][name] for name in ("key", "value", "headers", "timestamp")
        ]
        assert row["id"] == hashlib.sha256(f"{topic}\n{partition}\n{offset}\nsilver".encode()).hexdigest()
        assert (row["stream"], row["stage"], row["job"]) == ("metrics", "silver", "silver.metrics_events")
        assert (row["status"], row["attempts"]) == ("open", 1)
        assert row["first_seen"] == row["last_attempt"] > raw[at]["ingested_at"]
        assert all(reason["message"] for reason in row["reasons"])


def test_every_window_is_the_oracles_after_every_chapter(story: Story) -> None:
    names = list(story.chapters)

    for count, name in enumerate(names, 1):
        clean = verdicts.accepted(story.judged(*names[:count]), Metric)
        assert verdicts.window_differences(story.chapters[name].gold, clean, story.settings) == []
        assert sum(row["count"] for row in story.chapters[name].gold) == len(clean)


def test_a_window_of_more_values_than_the_sketch_keeps_has_percentiles_within_its_rank_error(
    story: Story,
) -> None:
    values = sorted((n * 7919 % 1009) / 7 for n in range(HOT_EVENTS))

    (row,) = (row for row in story.chapters["later"].gold if row["service_id"] == HOT)

    assert row["count"] == len(values) == HOT_EVENTS > key_of(story.settings, "metrics", "quantile_k")
    for name, rank in {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}.items():
        assert row[name] in values
        assert rank_error(values, rank, row[name]) <= verdicts.RANK_ERROR_AT_200 * 200 / key_of(
            story.settings, "metrics", "quantile_k"
        )


def test_a_silent_topic_writes_no_commit(story: Story) -> None:
    assert story.chapters["nothing"].batches == []
    assert story.chapters["nothing"].versions == story.chapters["samples"].versions


def test_records_that_are_all_refused_leave_only_a_note_in_silver_and_gold_alone(story: Story) -> None:
    before, after = story.chapters["nothing"].versions, story.chapters["refused"].versions

    assert {table: after[table] - before[table] for table in TABLES} == {
        BRONZE: 1,
        SILVER: 1,
        DEAD_LETTERS: 1,
        GOLD: 0,
    }
    log = pipeline.path_of(story.settings, SILVER) / "_delta_log" / f"{after[SILVER]:020}.json"
    kinds = {kind for line in log.read_text().split("\n") if line for kind in json.loads(line)}
    assert kinds == {"commitInfo", "txn"}


def test_later_traffic_of_another_key_makes_windows_final_and_changes_nothing_else_in_them(
    story: Story,
) -> None:
    before = {tuple(row[name] for name in KEY): row for row in story.chapters["refused"].gold}
    after = {tuple(row[name] for name in KEY): row for row in story.chapters["later"].gold}

    became_final = [key for key, row in before.items() if after[key]["is_final"] and not row["is_final"]]

    assert len(became_final) > 50
    assert [after[key] for key in before] == [
        row | {"is_final": row["is_final"] or key in became_final} for key, row in before.items()
    ]
    assert [row["service_id"] for key, row in after.items() if not row["is_final"]] == ["later"]


def test_a_late_record_within_the_allowed_lateness_updates_its_final_window(story: Story) -> None:
    before = {tuple(row[name] for name in KEY): row for row in story.chapters["later"].gold}
    after = {tuple(row[name] for name in KEY): row for row in story.chapters["late"].gold}

    changed = {key for key, row in after.items() if row != before.get(key)}

    (key,) = changed
    assert key[0] == HOT
    assert before[key]["is_final"]
    assert after[key]["is_final"]
    assert (before[key]["count"], before[key]["min"]) == (HOT_EVENTS, 0.0)
    assert (after[key]["count"], after[key]["min"]) == (HOT_EVENTS + 1, -5.0)


def test_the_change_feed_has_no_update_that_changes_nothing(story: Story) -> None:
    path = str(pipeline.path_of(story.settings, GOLD))
    feed = (
        story.spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 0)
        .load(path)
    )
    changes = [row.asDict(recursive=True) for row in feed.drop("_commit_timestamp").collect()]

    sides: dict[str, dict[Any, Row]] = {"update_preimage": {}, "update_postimage": {}, "insert": {}}
    for change in changes:
        kind, version = change.pop("_change_type"), change.pop("_commit_version")
        sides[kind][version, *(change[name] for name in KEY)] = change

    assert sides["update_preimage"].keys() == sides["update_postimage"].keys() != set()
    assert [
        key for key, row in sides["update_preimage"].items() if row == sides["update_postimage"][key]
    ] == []
    assert len(sides["insert"]) == len(story.chapters["again"].gold)


def test_running_every_layer_again_changes_nothing(story: Story) -> None:
    last, again = story.chapters["late"], story.chapters["again"]

    assert again.batches == []
    assert again.versions == last.versions
    assert again.bronze == []
    assert sorted(map(repr, again.gold)) == sorted(map(repr, last.gold))


@pytest.mark.soak
def test_partitions_that_a_topic_gains_while_a_layer_runs_are_read_from_their_beginning(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings({"kafka.topic_partitions": 2})
    pipeline.send(settings, [Raw(b"old", partition=number) for number in range(2)])
    landed: list[int] = []
    stop = Stop()

    def on_batch(done: BatchDone) -> None:
        landed.append(done.result.rows)

    with ThreadPoolExecutor(1) as pool:
        options = RunOptions("100 ms", on_batch=on_batch, stop=stop)
        running = pool.submit(run, Lake(spark, settings.lake), [STREAM], ["bronze"], settings, options)
        try:
            pipeline.await_(lambda: running.done() or sum(landed) == 2)
            widen(settings, partitions=4)
            pipeline.send(settings, [Raw(b"new", partition=number) for number in (3, 2, 2, 0)])
            pipeline.await_(lambda: running.done() or sum(landed) == 6)
        finally:
            stop.request()
        running.result()

    rows = pipeline.rows_of(settings, BRONZE)
    assert sorted((row["partition"], row["offset"], row["value"]) for row in rows) == [
        (0, 0, b"old"),
        (0, 1, b"new"),
        (1, 0, b"old"),
        (2, 0, b"new"),
        (2, 1, b"new"),
        (3, 0, b"new"),
    ]
