"""No two rows share a key, whatever their names are, and plain names appear in keys unchanged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from lakehouse.sinks.outgoing import changes_of, group_of, outgoing, within
from lakehouse.streams.definition import MergedTable
from lakehouse.streams.messages.key_names import joined
from tests.support.streams import CALL_RECORDS, METRICS_1M, METRICS_SUMMARY_10M, SALES_NOTIFICATIONS

MINUTE_MS = 1_777_896_000_000
AT = datetime(2026, 5, 4, 12, tzinfo=UTC)


def of_one_row(spark: SparkSession, key: Column, **columns: object) -> str:
    values = {name: F.lit(one) for name, one in columns.items()}
    (found,) = spark.range(1).withColumns(values).select(key).collect()[0]
    return str(found)


@pytest.mark.parametrize(
    ("names", "kafka", "row"),
    [
        (("auth", "cpu"), "auth:cpu", "auth:cpu"),
        (("a:b", "c"), "a%3Ab:c", "a%3Ab:c"),
        (("a", "b:c"), "a:b%3Ac", "a:b%3Ac"),
        (("auth-1", "50%"), "auth-1:50%", "auth-1:50%"),
        (("%3A", "%25"), "%253A:%2525", "%253A:%2525"),
    ],
)
def test_a_minute_is_keyed_by_service_and_metric(
    spark: SparkSession, names: tuple[str, str], kafka: str, row: str
) -> None:
    columns = {"service_id": names[0], "metric_name": names[1], "window_start": AT}
    assert of_one_row(spark, METRICS_1M.export.key(), **columns) == kafka
    assert of_one_row(spark, METRICS_1M.export.redis.row_key(), **columns) == f"{row}:{MINUTE_MS}"


@pytest.mark.parametrize(
    ("pair", "key"),
    [
        (("ada", "bob"), "ada-bob"),
        (("a", "b-c"), "a-b%2Dc"),
        (("a-b", "c"), "a%2Db-c"),
    ],
)
def test_a_call_is_keyed_by_its_pair(spark: SparkSession, pair: tuple[str, str], key: str) -> None:
    columns = {"user1": pair[0], "user2": pair[1], "ts": AT}
    export = CALL_RECORDS.export
    assert export.partition_by is not None
    assert of_one_row(spark, export.partition_by(), **columns) == key
    assert of_one_row(spark, export.key(), **columns) == f"{key}:{MINUTE_MS}"
    assert of_one_row(spark, export.redis.row_key(), **columns) == f"{key}:{MINUTE_MS}"


def test_a_summary_and_a_notification_are_keyed_by_their_names(spark: SparkSession) -> None:
    summary = {"environment": "prod:eu", "metric_name": "x:metric=y"}
    key = "environment=prod%3Aeu:metric=x%3Ametric=y"
    assert of_one_row(spark, METRICS_SUMMARY_10M.export.key(), **summary) == key
    notification = {"product": "a:1", "partition": 2, "offset": 3}
    assert of_one_row(spark, SALES_NOTIFICATIONS.export.redis.row_key(), **notification) == "a%3A1:2:3"


@pytest.mark.parametrize(
    ("table", "columns", "group"),
    [
        (METRICS_1M, {"metric_name": "cpu"}, "cpu"),
        (METRICS_1M, {"metric_name": "cpu:expiry"}, "cpu%3Aexpiry"),
        (METRICS_SUMMARY_10M, {"metric_name": "{a}"}, "%7Ba%7D"),
        (CALL_RECORDS, {"user1": "a-b"}, "a-b"),
    ],
)
def test_a_group_has_no_separator_of_the_writers_own_keys(
    spark: SparkSession, table: MergedTable, columns: dict[str, str], group: str
) -> None:
    assert of_one_row(spark, group_of(table), **columns) == group


@pytest.mark.parametrize("separator", [":", "-"])
def test_different_names_join_to_different_keys(spark: SparkSession, separator: str) -> None:
    rng = random.Random(1)

    def name() -> str:
        return "".join(rng.choices(f"{separator}%23A5D", k=rng.randrange(6)))

    pairs: Sequence[tuple[str, str]] = sorted({(name(), name()) for _ in range(5000)})
    frame = spark.createDataFrame(pairs, "one string, other string")
    keys = frame.select(joined(F.col("one"), F.col("other"), separator=separator)).distinct()
    assert keys.count() == len(pairs) > 3000


def test_the_size_of_what_leaves_is_counted_in_bytes(spark: SparkSession) -> None:
    row = dict.fromkeys(METRICS_1M.schema.names) | {
        "service_id": "größe",
        "metric_name": "検索",
        "window_start": AT,
    }
    rows = spark.createDataFrame([tuple(row.values())], METRICS_1M.schema)
    newest = rows.withColumns({"_change_type": F.lit("insert"), "_commit_version": F.lit(1)})

    with outgoing(newest, changes_of(METRICS_1M)) as found:
        (change,) = found.all_at_once()
        size = found.size_bytes

    assert size == sum(len((text or "").encode()) for text in (change.key, change.value, change.row_key))
    assert within(newest, changes_of(METRICS_1M), rows=1, size_bytes=size) == [change]
    assert within(newest, changes_of(METRICS_1M), rows=1, size_bytes=size - 1) is None
