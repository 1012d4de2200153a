"""The audit names the key of everything that is wrong, and nothing else.

The lake of all streams, filled through a real broker and exported to a real Redis, is copied. The copy is
damaged in a different way for each test, each time in a table of its own, and audited once. test_beside, too,
checks that an undamaged lake yields no findings.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from lakehouse.engine.runtime.runner import utc_now
from lakehouse.operations.audit import Report, audit
from lakehouse.settings import Settings
from lakehouse.storage.tables import Lake
from lakehouse.streams.registry import load
from tests.support import pipeline
from tests.support.journey import EVENTS
from tests.support.pipeline import Row
from tests.support.streams import STREAMS

pytestmark = pytest.mark.soak

SPENT, TRANSACTIONS = "gold.user_transactions_5m", "silver.transactions"
SUMMARIES = "gold.metrics_summary_10m"
BRONZE_CALLS, SILVER_CALLS = "bronze.call_metrics", "silver.call_metrics"
BRONZE_SALES, SILVER_SALES = "bronze.sales_events", "silver.sales_events"
SOLD = "gold.product_sales"

Examples = list[tuple[dict[str, Any], str]]


def found(report: Report) -> dict[str, Examples]:
    """Return the differences, by check and subject."""
    return {
        f"{check.name} {check.subject}": [(example.key, example.what) for example in check.examples]
        for check in report.checks
        if check.differences
    }


@dataclass(frozen=True)
class Damaged:
    """A copy of the lake after all the damage, the audit's findings, and the damaged rows."""

    lake: Settings
    report: Report
    different: Mapping[str, Examples]
    spent: list[Row]
    summaries: list[Row]
    calls: list[pipeline.Coordinates]
    sales: list[pipeline.Coordinates]
    in_redis: list[str]
    resent: str
    file: str


@pytest.fixture(scope="module")
def damaged(spark: SparkSession, filled_lake: Settings, tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    directory = tmp_path_factory.mktemp("damaged") / "lake"
    shutil.copytree(filled_lake.lake, directory)
    lake = filled_lake.changed({"lake": str(directory)})
    spent = sorted(pipeline.rows_of(lake, SPENT), key=lambda row: (row["user_id"], row["window_start"]))
    summaries = damage_percentiles(spark, lake)
    calls, sales = damage_way_to_silver(spark, lake), damage_bronze(spark, lake)
    damage_gold(spark, lake, spent[:3])
    resent = send_again(lake, spent[:3])
    file = newest_file(pipeline.path_of(lake, SOLD))
    file.unlink()

    # Redis is shared with the original lake, so it is repaired afterwards.
    rows = [f"{row['user_id']}:{row['window_start'] // 1000}" for row in spent[-3:]]
    other, changed, deleted, invented = (
        f"lakehouse:user_transactions_5m:row:{row}" for row in [*rows, "nobody:0"]
    )
    client: Any = redis.Redis.from_url(lake.redis.url.get_secret_value())
    kept = {name: client.get(name) for name in (other, changed, deleted)}
    try:
        client.set(changed, kept[changed].replace(b'"count":', b'"count":1'))
        client.set(other, re.sub(rb'"_generation":', b'"_generation":9', kept[other]))
        client.delete(deleted)
        client.set(invented, kept[deleted])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lakehouse.operations.audit._PAUSE_S", 0.1)  # nothing is in flight here
            report = audit(Lake(spark, lake.lake), load(lake), lake, utc_now())
    finally:
        client.mset(kept)
        client.delete(invented)
        client.close()
    return Damaged(lake, report, found(report), spent[:3], summaries, calls, sales, rows, resent, file.name)


def sql_name(lake: Settings, table: str) -> str:
    return f"delta.`{pipeline.path_of(lake, table)}`"


def damage_gold(spark: SparkSession, lake: Settings, rows: list[Row]) -> None:
    """Change one row, duplicate one, delete one and invent one."""
    changed, doubled, deleted = (
        f"user_id = '{row['user_id']}' AND unix_micros(window_start) = {row['window_start']}" for row in rows
    )
    gold = sql_name(lake, SPENT)
    spark.sql(f"UPDATE {gold} SET total_amount = total_amount + 0.01 WHERE {changed}")
    spark.sql(f"INSERT INTO {gold} SELECT * FROM {gold} WHERE {doubled}")
    spark.sql(f"DELETE FROM {gold} WHERE {deleted}")
    spark.sql(
        f"INSERT INTO {gold} SELECT 'nobody', window_start, window_end, total_amount, count "
        f"FROM {gold} WHERE {changed}"
    )


def damage_percentiles(spark: SparkSession, lake: Settings) -> list[Row]:
    """Damage a percentile of up to ten values, which is exact, and one of more, which is estimated."""
    rows = sorted(pipeline.rows_of(lake, SUMMARIES), key=lambda row: row["count"])
    large, small = rows[-1], next(row for row in rows if row["count"] > 1 and row["min"] < row["p90"])
    assert small["count"] <= 10 < large["count"]
    either = " OR ".join(
        f"(environment = '{row['environment']}' AND metric_name = '{row['metric_name']}' "
        f"AND unix_micros(window_start) = {row['window_start']})"
        for row in (small, large)
    )
    spark.sql(f"UPDATE {sql_name(lake, SUMMARIES)} SET p90 = min WHERE {either}")
    return [small, large]


def where(at: pipeline.Coordinates) -> str:
    return f"topic = '{at[0]}' AND partition = {at[1]} AND offset = {at[2]}"


def damage_bronze(spark: SparkSession, lake: Settings) -> list[pipeline.Coordinates]:
    """Change the headers of one record and the timestamp of another."""
    headed, stamped = sorted(map(pipeline.coordinates_of, pipeline.rows_of(lake, SILVER_SALES)))[:2]
    bronze = sql_name(lake, BRONZE_SALES)
    other = "array(named_struct('key', 'k', 'value', CAST('v' AS BINARY)))"
    spark.sql(f"UPDATE {bronze} SET headers = {other} WHERE {where(headed)}")
    spark.sql(f"UPDATE {bronze} SET timestamp = timestamp + INTERVAL 1 SECOND WHERE {where(stamped)}")
    return [headed, stamped]


def damage_way_to_silver(spark: SparkSession, lake: Settings) -> list[pipeline.Coordinates]:
    """Delete one record from silver, give one a letter as well, and duplicate one in bronze."""
    rows = pipeline.rows_of(lake, SILVER_CALLS)
    lost, both, twice = sorted(map(pipeline.coordinates_of, rows))[:3]
    bronze, dead = sql_name(lake, BRONZE_CALLS), sql_name(lake, "silver.dead_letters")
    spark.sql(f"DELETE FROM {sql_name(lake, SILVER_CALLS)} WHERE {where(lost)}")
    spark.sql(f"INSERT INTO {bronze} SELECT * FROM {bronze} WHERE {where(twice)}")
    letter = spark.sql(f"SELECT * FROM {dead} WHERE job = '{SILVER_CALLS}' LIMIT 1")
    place = {"partition": f"{both[1]} AS partition", "offset": f"{both[2]}L AS offset"}
    moved = letter.selectExpr(*(place.get(name, f"`{name}`") for name in letter.columns))
    moved.write.format("delta").mode("append").save(str(pipeline.path_of(lake, "silver.dead_letters")))
    return [lost, both, twice]


def send_again(lake: Settings, damaged: list[Row]) -> str:
    """Resend a message under its own key and under the key "nobody"; return its user.

    Its user and window differ from those of the damaged rows.
    """
    topic = lake.topic("aggregated-transactions")
    messages = pipeline.read_topic(lake.kafka.bootstrap_servers, topic)
    users, windows = ({row[name] for row in damaged} for name in ("user_id", "window_start"))
    last = next(
        one
        for one in reversed(messages)
        if one.key.decode() not in users and 1000 * json.loads(one.value)["windowStart"] not in windows
    )
    producer = KafkaProducer(bootstrap_servers=lake.kafka.bootstrap_servers, acks="all")
    try:
        for key in (last.key, b"nobody"):
            producer.send(topic, last.value, key=key).get(30)
    finally:
        producer.close()
    return str(last.key.decode())


def newest_file(directory: Path) -> Path:
    return max(directory.glob("part-*.parquet"), key=lambda path: path.stat().st_mtime)


def iso(row: Row) -> str:
    return f"{datetime.fromtimestamp(row['window_start'] / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"


# The findings.


def test_what_is_damaged_differs_and_nothing_else(damaged: Damaged) -> None:
    topic, calls = (damaged.lake.topic(name) for name in ("aggregated-transactions", "metricsTopic"))
    of_sales = {name for name in damaged.different if name.endswith((SOLD, f"{SOLD} → Redis"))}
    sales = damaged.lake.topic("sales-events-v1")
    assert set(damaged.different) - of_sales == {
        f"gold {TRANSACTIONS} → {SPENT}",
        f"redis {SPENT} → Redis",
        f"exported {SPENT} → {topic}",
        f"gold silver.metrics_events → {SUMMARIES}",
        f"landed {calls} → {BRONZE_CALLS}",
        f"records {BRONZE_CALLS} = {SILVER_CALLS} + dead letters",
        calls_subject(damaged),
        f"landed {sales} → {BRONZE_SALES}",
        f"records {BRONZE_SALES} = {SILVER_SALES} + dead letters",
    }


def test_every_record_and_every_row_is_compared(damaged: Damaged) -> None:
    rows = {(check.stream, check.name): 0 for check in damaged.report.checks}
    for check in damaged.report.checks:
        rows[check.stream, check.name] += check.compared
    events = {stream.name: 2 * EVENTS for stream in STREAMS}
    landed, books = ({name: rows[name, kind] for name in events} for kind in ("landed", "records"))
    assert landed == books == events
    assert min(rows[name, "files"] for name in events) >= 2
    readable = events.keys() - {"sales"}  # its gold has lost a file
    for kind in ("gold", "redis", "exported"):
        assert min(rows[name, kind] for name in readable) > 0, kind


def calls_subject(damaged: Damaged) -> str:
    (name,) = [one for one in damaged.different if one.startswith("gold ") and "gold.call_records" in one]
    return name


def test_gold_that_is_not_what_silver_makes_it_is_named_by_row(damaged: Damaged) -> None:
    changed, doubled, deleted = damaged.spent
    by_user = {
        (key["user_id"], key["window_start"]): what
        for key, what in damaged.different[f"gold {TRANSACTIONS} → {SPENT}"]
    }
    assert len(by_user) == 4
    total = f"{changed['total_amount']:.9f}"
    assert by_user.pop((changed["user_id"], iso(changed))) == (
        f"total_amount is {float(total) + 0.01:.9f}, but should be {total}"
    )
    assert by_user.pop((doubled["user_id"], iso(doubled))) == "a duplicate key"
    assert by_user.pop((deleted["user_id"], iso(deleted))) == "missing"
    assert by_user.popitem() == (("nobody", iso(changed)), "without a row in silver")


def test_a_percentile_beyond_the_stated_rank_error_is_named(damaged: Damaged) -> None:
    small, large = damaged.summaries
    whats = {
        (key["environment"], key["metric_name"], key["window_start"]): what.split(" is ")[0]
        for key, what in damaged.different[f"gold silver.metrics_events → {SUMMARIES}"]
    }
    assert whats == {
        (small["environment"], small["metric_name"], iso(small)): "p90",
        (large["environment"], large["metric_name"], iso(large)): "the rank error of p90",
    }


def test_a_record_with_other_headers_or_another_timestamp_than_in_kafka_is_named(damaged: Damaged) -> None:
    headed, stamped = damaged.sales
    topic = damaged.lake.topic("sales-events-v1")
    landed = damaged.different[f"landed {topic} → {BRONZE_SALES}"]
    books = damaged.different[f"records {BRONZE_SALES} = {SILVER_SALES} + dead letters"]
    assert {(key["partition"], key["offset"]): what for key, what in landed} == {
        headed[1:]: "different in bronze and Kafka",
        stamped[1:]: "different in bronze and Kafka",
    }
    ((key, what),) = books
    assert (key["partition"], key["offset"]) == stamped[1:]
    assert what.startswith("kafka_timestamp is ")


def test_rows_that_are_lost_or_doubled_on_the_way_to_silver_are_named_by_offset(damaged: Damaged) -> None:
    lost, both, twice = damaged.calls
    topic = damaged.lake.topic("metricsTopic")
    assert damaged.different[f"landed {topic} → {BRONZE_CALLS}"] == [
        ({"topic": topic, "partition": twice[1], "offset": twice[2]}, "2 times in bronze")
    ]
    books = {
        (key["partition"], key["offset"]): what
        for key, what in damaged.different[f"records {BRONZE_CALLS} = {SILVER_CALLS} + dead letters"]
    }
    assert books == {
        lost[1:]: "neither in silver nor a dead letter",
        both[1:]: "both in silver and an open dead letter",
    }  # rows that silver has not reached, such as the duplicate in bronze, are not checked
    whats = [what for _, what in damaged.different[calls_subject(damaged)]]
    other_extent = {"missing", "without a row in silver"}  # of a call that has lost its first event
    assert all(", but should be " in what or what in other_extent for what in whats), whats


def test_rows_that_are_other_in_redis_and_in_the_topic_are_named(damaged: Damaged) -> None:
    redis_rows = {key["row"]: what for key, what in damaged.different[f"redis {SPENT} → Redis"]}
    other, changed, deleted = damaged.in_redis
    assert redis_rows.pop(other).startswith(
        "Redis has the row of a newer table from another lake, which blocks"
    )
    assert redis_rows.pop(deleted) == "in gold, but not in Redis"
    assert redis_rows.pop("nobody:0") == "in Redis, but not in gold"
    assert redis_rows.pop(changed).startswith('Redis has {"userId":')
    assert redis_rows == {}

    topic = damaged.lake.topic("aggregated-transactions")
    sent = {key["key"]: what for key, what in damaged.different[f"exported {SPENT} → {topic}"]}
    assert sent["nobody"] == "in the topic, but not in gold"
    counts = re.search(r": (\d+) times in the topic, (\d+) times in the feed$", sent[damaged.resent])
    assert counts is not None
    assert int(counts[1]) == int(counts[2]) + 1


def test_a_data_file_that_is_gone_is_named(damaged: Damaged) -> None:
    assert damaged.different[f"files {SOLD}"] == [
        ({"file": damaged.file}, "is in the table's log, but missing")
    ]
    rest = [name for name in damaged.different if SOLD in name and not name.startswith("files ")]
    assert rest
    assert all("could not be compared" in what for name in rest for _, what in damaged.different[name])
