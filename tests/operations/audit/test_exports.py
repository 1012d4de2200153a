"""Exported rows compared with gold: rows in, differences out."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lakehouse.sinks.kafka.audit import _by_row

Message = tuple[str, str | None, int, int]


def window(start: int, count: int = 1) -> str:
    return f'{{"windowStart":{start},"count":{count}}}'


def differences(
    spark: SparkSession, standing: list[tuple[str, int]], messages: list[Message]
) -> list[tuple[str, str | None, str]]:
    gold = spark.createDataFrame(
        [(key, window(start), str(start), True) for key, start in standing],
        "key string, value string, windowStart string, leaves boolean",
    )
    sent = spark.createDataFrame(messages, "key string, value string, partition int, offset long")
    found = _by_row(gold, sent, ("windowStart",)).collect()
    return sorted((row.key, row.windowStart, row.what) for row in found)


def test_a_window_that_gold_has_lost_differs_until_a_tombstone_of_its_own_follows(
    spark: SparkSession,
) -> None:
    sent: list[Message] = [
        ("kept and lost", window(1), 0, 0),
        ("kept and lost", window(2), 0, 1),
        ("kept and lost", None, 0, 2),  # a tombstone for the key of all windows says nothing about one
        ("lost", window(1), 1, 0),
        ("told too early:1", None, 1, 1),
        ("told too early", window(1), 1, 2),
    ]
    standing = [("kept and lost", 1)]
    lost, early = ("lost", "1", "in the topic, but not in gold"), ("told too early", "1")
    beside = ("kept and lost", "2", "in the topic, but not in gold")

    assert differences(spark, standing, sent) == [beside, lost, (*early, "in the topic, but not in gold")]
    told: list[Message] = [("kept and lost:2", None, 0, 9), ("lost:1", None, 1, 9)]
    assert differences(spark, standing, [*sent, *told]) == [(*early, "in the topic, but not in gold")]


def test_a_tombstone_excuses_no_row_that_gold_has(spark: SparkSession) -> None:
    sent: list[Message] = [("a", window(1, count=7), 0, 0), ("a:1", None, 0, 1)]

    assert differences(spark, [("a", 1), ("b", 1)], sent) == [
        ("a", "1", f"the topic has {window(1, count=7)}"),
        ("b", "1", "in gold, but not in the topic"),
    ]
