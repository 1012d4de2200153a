"""The audit finds nothing where nothing is wrong, and names the key of everything that is.

One lake of every stream, filled over a real broker and exported to a real Redis, is damaged by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from lakehouse.audit import Report, audit
from lakehouse.runner import run, utc_now
from lakehouse.settings import Settings
from lakehouse.sinks import row_key
from lakehouse.streams import STREAMS, choose
from lakehouse.triggers import AVAILABLE_NOW
from tests import pipeline
from tests.integration.conftest import LAKE_EVENTS

GOLD, SILVER, BRONZE = "gold.user_transactions_5m", "silver.transactions", "bronze.transactions"


@pytest.fixture
def lake(filled_lake: Settings) -> Settings:
    return filled_lake


def audited(spark: SparkSession, settings: Settings, *names: str) -> Report:
    return audit(spark, choose(names), settings, utc_now())


def found(report: Report) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """What differs, by check and subject."""
    return {
        f"{check.name} {check.subject}": [(example.key, example.what) for example in check.examples]
        for check in report.checks
        if check.differences
    }


@contextmanager
def damaged(spark: SparkSession, settings: Settings, table: str) -> Iterator[str]:
    """The table's name in SQL; it is put back to its version at the end."""
    name, version = f"delta.`{pipeline.path_of(settings, table)}`", pipeline.version_of(settings, table)
    try:
        yield name
    finally:
        spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {version}")


def test_nothing_differs_where_nothing_is_wrong(spark: SparkSession, lake: Settings) -> None:
    report = audited(spark, lake)

    assert found(report) == {}
    assert report.is_clean
    rows = {(check.stream, check.name): 0 for check in report.checks}
    for check in report.checks:
        rows[check.stream, check.name] += check.compared
    for stream in STREAMS:
        assert rows[stream.name, "landed"] == rows[stream.name, "books"] == 2 * LAKE_EVENTS
        assert rows[stream.name, "files"] >= 2
        assert rows[stream.name, "gold"] > 0
        assert rows[stream.name, "redis"] > 0
        assert rows[stream.name, "exported"] > 0


def test_gold_that_is_not_what_silver_makes_it_is_named_by_row(spark: SparkSession, lake: Settings) -> None:
    rows = pipeline.rows_of(spark, lake, GOLD)
    changed, doubled, deleted = sorted(rows, key=lambda row: (row["user_id"], row["window_start"]))[:3]

    def where(row: dict[str, Any]) -> str:
        return f"user_id = '{row['user_id']}' AND unix_micros(window_start) = {row['window_start']}"

    with damaged(spark, lake, GOLD) as gold:
        spark.sql(f"UPDATE {gold} SET total_amount = total_amount + 0.01 WHERE {where(changed)}")
        spark.sql(f"INSERT INTO {gold} SELECT * FROM {gold} WHERE {where(doubled)}")
        spark.sql(f"DELETE FROM {gold} WHERE {where(deleted)}")
        spark.sql(
            f"INSERT INTO {gold} SELECT 'nobody', window_start, window_end, total_amount, count "
            f"FROM {gold} WHERE {where(changed)}"
        )
        report = audited(spark, lake, "transactions")

    different = found(report)
    assert list(different) == [f"gold {SILVER} → {GOLD}"]
    by_user = {
        (key["user_id"], key["window_start"]): what for key, what in different[f"gold {SILVER} → {GOLD}"]
    }
    assert len(by_user) == 4
    total = f"{changed['total_amount']:.9f}"
    assert by_user.pop((changed["user_id"], iso(changed))) == (
        f"total_amount is {float(total) + 0.01:.9f}, silver makes it {total}"
    )
    assert by_user.pop((doubled["user_id"], iso(doubled))) == "there more than once"
    assert by_user.pop((deleted["user_id"], iso(deleted))) == "missing"
    assert by_user.popitem() == (("nobody", iso(changed)), "made from no row of silver")
    assert found(audited(spark, lake, "transactions")) == {}


def iso(row: dict[str, Any]) -> str:
    return f"{datetime.fromtimestamp(row['window_start'] / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"


def test_a_percentile_beyond_the_stated_rank_error_is_named(spark: SparkSession, lake: Settings) -> None:
    """One of up to ten values is exact, one of more is estimated."""
    table = "gold.metrics_summary_10m"
    rows = sorted(pipeline.rows_of(spark, lake, table), key=lambda row: row["count"])
    large, small = rows[-1], next(row for row in rows if row["count"] > 1 and row["min"] < row["p90"])
    assert small["count"] <= 10 < large["count"]

    with damaged(spark, lake, table) as gold:
        for row in (small, large):
            spark.sql(
                f"UPDATE {gold} SET p90 = min WHERE environment = '{row['environment']}' "
                f"AND metric_name = '{row['metric_name']}' "
                f"AND unix_micros(window_start) = {row['window_start']}"
            )
        report = audited(spark, lake, "metrics")

    (subject, examples), *others = found(report).items()
    assert others == []
    assert subject == f"gold silver.metrics_events → {table}"
    whats = {
        (key["environment"], key["metric_name"], key["window_start"]): what.split(" is ")[0]
        for key, what in examples
    }
    assert whats == {
        (small["environment"], small["metric_name"], iso(small)): "p90",
        (large["environment"], large["metric_name"], iso(large)): "the rank of p90",
    }


def test_rows_that_are_lost_or_doubled_on_the_way_to_silver_are_named_by_offset(
    spark: SparkSession, lake: Settings
) -> None:
    lost, both, twice = (
        pipeline.coordinates_of(row)
        for row in sorted(pipeline.rows_of(spark, lake, SILVER), key=pipeline.coordinates_of)[:3]
    )

    def where(at: pipeline.Coordinates) -> str:
        return f"topic = '{at[0]}' AND partition = {at[1]} AND offset = {at[2]}"

    dead_letters = "silver.dead_letters"
    with (
        damaged(spark, lake, SILVER) as silver,
        damaged(spark, lake, dead_letters) as dead,
        damaged(spark, lake, BRONZE) as bronze,
    ):
        spark.sql(f"DELETE FROM {silver} WHERE {where(lost)}")
        insert_letter(spark, dead, both)
        spark.sql(f"INSERT INTO {bronze} SELECT * FROM {bronze} WHERE {where(twice)}")
        different = found(audited(spark, lake, "transactions"))

    topic = lake.topic("transactions-topic")
    assert different.pop(f"landed {topic} → {BRONZE}") == [
        ({"topic": topic, "partition": twice[1], "offset": twice[2]}, "2 times in bronze")
    ]
    books = {
        (key["partition"], key["offset"]): what
        for key, what in different.pop(f"books {BRONZE} = {SILVER} + dead letters")
    }
    assert books == {
        lost[1:]: "neither in silver nor a dead letter",
        both[1:]: "in silver, and an open dead letter too",
    }  # what silver has not come to yet, like the row that is twice in bronze, is not asked for
    (window,) = different.pop(f"gold {SILVER} → {GOLD}")
    assert "silver makes it" in window[1] or window[1] == "made from no row of silver"
    assert different == {}


def insert_letter(spark: SparkSession, dead: str, at: pipeline.Coordinates) -> None:
    """A letter of a record that silver has accepted, like one that the table has."""
    letter = spark.sql(f"SELECT * FROM {dead} WHERE stream = 'transactions' LIMIT 1")
    moved = letter.selectExpr(
        *(
            {"partition": f"{at[1]} AS partition", "offset": f"{at[2]}L AS offset"}.get(name, f"`{name}`")
            for name in letter.columns
        )
    )
    moved.write.format("delta").mode("append").save(dead.removeprefix("delta.`").removesuffix("`"))


def test_rows_that_are_other_in_redis_and_in_the_topic_are_named(spark: SparkSession, lake: Settings) -> None:
    run(spark, choose(["transactions"]), ["export"], lake, trigger=AVAILABLE_NOW)  # what was put back
    client: Any = redis.Redis.from_url(lake.redis_url.get_secret_value())
    rows = [
        f"{row['user_id']}:{row['window_start'] // 1000}" for row in pipeline.rows_of(spark, lake, GOLD)
    ]  # other tests of this Redis may have left rows of other tables of this name
    changed, deleted, invented = (row_key("user_transactions_5m", row) for row in [*rows[:2], "nobody:0"])
    kept = {name: client.get(name) for name in (changed, deleted)}
    topic = lake.topic("aggregated-transactions")
    last = pipeline.read_topic(lake.kafka_bootstrap_servers, topic)[-1]
    try:
        client.set(changed, kept[changed].replace(b'"count":', b'"count":1'))
        client.delete(deleted)
        client.set(invented, kept[deleted])
        put(lake, topic, last.key, last.value)
        put(lake, topic, b"nobody", last.value)
        different = found(audited(spark, lake, "transactions"))
    finally:
        client.mset(kept)
        client.delete(invented)

    redis_rows = {key["row"]: what for key, what in different.pop(f"redis {GOLD} → Redis")}
    assert redis_rows.pop(rows[1]) == "in gold, but not in Redis"
    assert redis_rows.pop("nobody:0") == "in Redis, but not in gold"
    assert redis_rows.pop(rows[0]).startswith('Redis says {"userId":')
    assert redis_rows == {}
    sent = {key["key"]: what for key, what in different.pop(f"exported {GOLD} → {topic}")}
    assert sent["nobody"] == "in the topic, but not in gold"
    counts = re.search(r": (\d+) times in the topic, (\d+) times in the feed$", sent[last.key.decode()])
    assert counts is not None
    assert int(counts[1]) == int(counts[2]) + 1
    assert different == {}


def put(settings: Settings, topic: str, key: bytes, value: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.kafka_bootstrap_servers, acks="all")
    try:
        producer.send(topic, value, key=key).get(30)
    finally:
        producer.close()


def test_a_data_file_that_is_gone_is_named_and_the_command_says_so(
    spark: SparkSession, lake: Settings, tmp_path: Path
) -> None:
    directory = pipeline.path_of(lake, "gold.product_sales")
    file = max(directory.glob("part-*.parquet"), key=lambda path: path.stat().st_mtime)
    file.rename(tmp_path / file.name)
    try:
        different = found(audited(spark, lake, "sales"))
    finally:
        (tmp_path / file.name).rename(file)

    assert different.pop("files gold.product_sales") == [
        ({"file": file.name}, "named by the table's log, but gone")
    ]
    assert all("could not be compared" in what for examples in different.values() for _, what in examples)
