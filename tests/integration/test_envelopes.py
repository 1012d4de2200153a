"""Records with hostile envelopes: timestamps that are not valid times, and an unreadable record."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import InvalidTimestampError
from pyspark.sql import SparkSession

from lakehouse.cli.options import skipped
from lakehouse.cli.reports import dead_letters as report
from lakehouse.common.errors import SettingsError, StreamError
from lakehouse.common.rows_as_text import as_json
from lakehouse.dev.services.services import Endpoints
from lakehouse.engine.layers import bronze
from lakehouse.engine.layers.topic_reading import capped
from lakehouse.engine.ops_tables.data_losses import LostRange
from lakehouse.engine.records.dead_letters import DEAD_LETTERS, find_letter, newest_letters
from lakehouse.engine.runtime.runner import RunOptions, run
from lakehouse.engine.runtime.triggers import AVAILABLE_NOW
from lakehouse.operations.audit.landing import check_landing
from lakehouse.operations.catalog.spark_sql import ask
from lakehouse.operations.repair.rebuild_silver import Landed
from lakehouse.operations.telemetry import Observer
from lakehouse.settings import Settings, load_settings
from lakehouse.storage.kafka import topics
from lakehouse.storage.kafka.topics import create_topics, unlimited
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import load
from tests.support import pipeline
from tests.support.pipeline import BRONZE, SILVER, SOURCE, STREAM, Raw
from tests.support.settings import MakeSettings

ANY_TIME = dict.fromkeys(
    ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), str(2**63 - 1)
)
"""Properties of a topic that accepts any timestamp."""

NO_TIMES_MS = (
    *(-(2**61), -(10**17), -62_200_000_000_000, -14_830_974_000_123, -2_208_988_800_001, -1),
    *(1_795_651_200_000_000, 1_795_651_200_000_000_000, 2**61),
)
"""Invalid Kafka timestamps: extremes; before the years 1, 1582 and 1900; none; micro- and nanoseconds."""

NOW_MS = int(time.time() * 1000)
UNDATED = b'{"serviceId":"a","metricName":"m","value":1}'
DATED = UNDATED[:-1] + b',"timestamp":%d}' % NOW_MS


def topic_of(settings: Settings) -> str:
    return settings.topic(SOURCE.topic)


def landing(spark: SparkSession, settings: Settings) -> tuple[int, tuple[str, ...]]:
    """Return what the audit finds between Kafka and bronze: differences and notes."""
    lake = Lake(spark, settings.lake)
    (check,) = check_landing(lake, STREAM, SOURCE, topic_of(settings), settings.kafka.access)
    return check.differences, check.notes


@pytest.mark.soak
def test_records_with_any_timestamp_land_byte_for_byte_and_stop_no_watcher(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings({"kafka.topic_partitions": 2})
    create_topics(settings.kafka.access, {topic_of(settings): 2}, ANY_TIME)
    odd = [
        Raw(value, b"k", (("h", b"\xff"), ("h", b"")), 0, timestamp_ms=ms)
        for ms in NO_TIMES_MS
        for value in (DATED, UNDATED)
    ]
    usual = [Raw(DATED, partition=0, timestamp_ms=NOW_MS)] * 3
    pipeline.send(settings, [*usual, *odd, *usual, Raw(DATED, partition=1, timestamp_ms=-(10**17))])
    (waiting,) = Observer([STREAM], settings).observe(datetime.now(UTC)).streams
    assert [lag.records for lag in waiting.partitions] == [24, 1]
    assert waiting.partitions[1].seconds is None

    pipeline.run_layers(spark, settings, "bronze", "silver")

    sent = pipeline.read_topic(settings.kafka.bootstrap_servers, topic_of(settings))
    rows = {pipeline.coordinates_of(row): row for row in pipeline.rows_of(settings, BRONZE)}
    assert len(sent) == len(rows) == 25
    for one in sent:
        row, is_time = rows[one.topic, one.partition, one.offset], one.timestamp == NOW_MS
        assert (row["key"], row["value"]) == (one.key, one.value)
        headers = (
            None if row["headers"] is None else [(each["key"], each["value"]) for each in row["headers"]]
        )
        assert headers == ([tuple(header) for header in one.headers] or None)
        assert row["timestamp"] == (NOW_MS * 1000 if is_time else None)
        assert row["raw_timestamp"] == (None if is_time else one.timestamp)
    letters = pipeline.rows_of(settings, DEAD_LETTERS.qualified_name)
    assert [[one["rule"] for one in row["reasons"]] for row in letters] == [["bad_timestamp"]] * len(
        NO_TIMES_MS
    )
    assert {row["value"] for row in letters} == {UNDATED}
    assert len(pipeline.rows_of(settings, SILVER)) == len(rows) - len(letters)
    assert landing(spark, settings) == (0, ())


@pytest.mark.soak
def test_a_record_that_nothing_can_read_is_named_and_passed_over_on_request(
    spark: SparkSession, make_settings: MakeSettings
) -> None:
    settings = make_settings({"kafka.topic_partitions": 1})
    for number in range(3):
        pipeline.send(settings, [Raw(DATED, b"damaged" if number == 1 else b"sound")])
    (segment,) = Path(settings.home).rglob(f"{topic_of(settings)}-0/*.log")
    segment.write_bytes(segment.read_bytes().replace(b"damaged", b"DAMAGED"))
    lake, place = Lake(spark, settings.lake), f"{topic_of(settings)}/0/1"

    with pytest.raises(StreamError) as refused:
        pipeline.run_layers(spark, settings, "bronze")
    said = str(refused.value)
    assert said.startswith(
        f"{BRONZE} cannot read the record at {place}, and neither can Kafka's own client: "
    )
    assert f"`lakehouse run bronze --skip {place}`" in said
    assert [row["offset"] for row in pipeline.rows_of(settings, BRONZE)] == [0]

    notices = list[str]()
    options = RunOptions(
        AVAILABLE_NOW, skip=[LostRange(topic_of(settings), 0, 1, 1)], on_notice=notices.append
    )
    run(lake, [STREAM], ["bronze"], settings, options)

    topic = topic_of(settings)
    what = f"offsets 1 to 1 of partition 0 of topic {topic} (1 offset)"
    assert notices == [f"{BRONZE} skips {what}; noted in ops.data_losses"]
    assert sorted(row["offset"] for row in pipeline.rows_of(settings, BRONZE)) == [0, 2]
    (loss,) = pipeline.rows_of(settings, "ops.data_losses")
    assert (loss["partition"], loss["first_offset"], loss["last_offset"]) == (0, 1, 1)
    said = (
        f"{topic}-0: offsets 1 to 1 never landed; "
        f"recorded as lost by --allow data-loss or --skip for {BRONZE}"
    )
    assert landing(spark, settings) == (0, (said,))


def test_the_last_record_of_a_topic_stays_skipped(spark: SparkSession, make_settings: MakeSettings) -> None:
    settings = make_settings({"kafka.topic_partitions": 1})
    pipeline.send(settings, [Raw(DATED)] * 3)
    options = RunOptions(AVAILABLE_NOW, skip=[LostRange(topic_of(settings), 0, 1, 9)])
    run(Lake(spark, settings.lake), [STREAM], ["bronze"], settings, options)

    pipeline.send(settings, [Raw(DATED)])
    pipeline.run_layers(spark, settings, "bronze")

    assert sorted(row["offset"] for row in pipeline.rows_of(settings, BRONZE)) == [0, 3]
    (loss,) = pipeline.rows_of(settings, "ops.data_losses")
    assert (loss["first_offset"], loss["last_offset"]) == (1, 2)


def test_topics_that_we_create_take_no_timestamp_that_is_no_time(
    services: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, any_time, by_broker, older = (f"{name}-{uuid.uuid4().hex[:8]}" for name in "abcd")
    create_topics(services.access, {ours: 1})
    create_topics(services.access, {any_time: 1}, ANY_TIME)
    create_topics(services.access, {by_broker: 1}, ANY_TIME | {"message.timestamp.type": "LogAppendTime"})
    with monkeypatch.context() as patch:  # unknown to any broker, as the real ones are before 3.6
        patch.setattr(topics, "_DATED", {"message.timestamp.never.max.ms": "1"})
        assert create_topics(services.access, {older: 1, ours: 1}) == [older]

    assert unlimited(services.access, [ours, any_time, by_broker, "nobody's"]).undated == [any_time]
    with closing(KafkaProducer(bootstrap_servers=services.kafka, enable_idempotence=False)) as producer:
        for ms in NO_TIMES_MS:
            sent = producer.send(ours, b"", timestamp_ms=ms)
            with pytest.raises(InvalidTimestampError) if ms != -1 else nullcontext():
                sent.get(60)


def test_records_without_a_time_are_rebuilt_by_when_they_landed(spark: SparkSession) -> None:
    noon, hour = datetime(2026, 3, 1, 12, tzinfo=UTC), timedelta(hours=1)
    rows: list[Mapping[str, Any]] = [
        {"offset": 0, "timestamp": noon, "ingested_at": noon + 5 * hour},
        {"offset": 1, "timestamp": None, "ingested_at": noon},
        {"offset": 2, "timestamp": None, "ingested_at": noon + hour},
        {"offset": 3, "timestamp": noon - hour, "ingested_at": noon},
    ]
    frame = local_frame(spark, rows, bronze.SCHEMA)
    assert [row.offset for row in frame.where(Landed(noon, noon + hour).condition()).collect()] == [0, 1]


def test_times_beyond_pythons_calendar_are_shown(spark: SparkSession, make_settings: MakeSettings) -> None:
    """Rows from earlier versions and other writers contain such times."""
    lake = Lake(spark, make_settings().lake)
    path = lake.ensure(DEAD_LETTERS)
    spark.sql(
        f"INSERT INTO delta.`{path}` (id, stream, offset, kafka_timestamp, headers, reasons, first_seen) "
        "SELECT id, 's', 1, timestamp_micros(us), array(), array(), timestamp_millis(0) "
        "FROM VALUES ('a', 1795651200000000000), ('b', -62200000000000000) AS rows (id, us)"
    )
    letters = lake.read_or_empty(DEAD_LETTERS)

    listed = report.listed([], newest_letters(letters, 20, 100))["letters"]
    assert [one["first_seen"] for one in listed] == ["1970-01-01T00:00:00Z"] * 2
    shown = [report.whole(find_letter(letters, id_)) for id_ in ("a", "b")]
    assert [one["kafka_timestamp"] for one in shown] == ["+58871-12-03T00:00:00Z", "-0002-12-17T14:13:20Z"]
    assert shown[0]["first_seen"] == "1970-01-01T00:00:00Z"
    statement = (
        "SELECT kafka_timestamp AS t, date(kafka_timestamp) AS t, array(kafka_timestamp, null) AS many, "
        "named_struct('at', kafka_timestamp, 'n', 1) AS one, map(first_seen, 1) AS by "
        f"FROM delta.`{path}` WHERE id = 'a'"
    )
    (row,) = ask(spark, statement, limit=10).rows
    at = "+58871-12-03T00:00:00Z"
    assert row == (at, "+58871-12-03", [at, None], (at, 1), {"1970-01-01T00:00:00Z": 1})
    assert json.loads(as_json(ask(spark, statement, limit=10)))[0]["many"] == [at, None]


def test_a_micro_batch_of_fewer_records_than_partitions_leaves_some_out() -> None:
    waiting = {0: (0, 10), 1: (5, 5), 2: (7, 100)}
    assert capped(waiting, 1) == {2: (7, 8)}
    assert capped(waiting, 2) == {2: (7, 8), 0: (0, 1)}
    assert capped(waiting, 103) == waiting


@pytest.mark.parametrize("place", ["", "t/0", "t/0/x", "t/0/5-", "other/0/5", "t/-1/5", "t/0/5/6"])
def test_what_is_no_place_in_a_topic_that_is_read_is_not_skipped(place: str) -> None:
    settings = load_settings().changed({"topics": {"sales-events-v1": "t"}})
    with pytest.raises(
        SettingsError, match=r"expected TOPIC/PARTITION/OFFSET, with one of these topics: .*t"
    ):
        skipped([place], settings, load(settings))
    assert skipped(["t/0/5", "t/11/5-9"], settings, load(settings)) == [
        LostRange("t", 0, 5, 5),
        LostRange("t", 11, 5, 9),
    ]
