"""Functions of rows whose plan is kept: when it is, when it is not, and always with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from lakehouse.storage.spark import internals
from lakehouse.storage.spark.execution import Amount, executing_for, having_set
from lakehouse.storage.spark.kept import Kept


class _Counted:
    """A function of rows that counts how often it was applied."""

    def __init__(self, function: Callable[[DataFrame], DataFrame]) -> None:
        self._function = function
        self.times = 0

    def __call__(self, rows: DataFrame) -> DataFrame:
        self.times += 1
        return self._function(rows)


@pytest.fixture(autouse=True)
def few(spark: SparkSession) -> Iterator[None]:
    """Execute for few rows, whatever the session was left with."""
    with executing_for(spark, Amount.FEW):
        yield


def _numbers(spark: SparkSession, *numbers: int | None) -> DataFrame:
    return spark.createDataFrame([(one,) for one in numbers], "n long")


def _found(rows: DataFrame) -> list[object]:
    return sorted((row.found for row in rows.collect()), key=str)


def _doubled(rows: DataFrame) -> DataFrame:
    return rows.withColumn("twice", F.col("n") * 2).select((F.col("twice") + 1).alias("found"))


def test_a_plan_is_made_once_and_filled_with_the_next_rows(spark: SparkSession) -> None:
    doubled = _Counted(_doubled)
    kept = Kept(doubled)

    assert _found(kept.of(_numbers(spark, 1, 2, None))) == [3, 5, None]
    assert _found(kept.of(_numbers(spark, 40))) == [81]
    assert _found(kept.of(_numbers(spark))) == []
    assert doubled.times == 1


def test_a_plan_is_kept_across_commits_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    doubled = _Counted(_doubled)
    kept = Kept(doubled)

    for number in range(3):
        assert _found(kept.of(_numbers(spark, number))) == [2 * number + 1]
        _numbers(spark, number).write.format("delta").mode("append").save(f"{tmp_path}/numbers")
    assert doubled.times == 1


def test_without_the_jar_the_function_is_applied_each_time(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled = _Counted(_doubled)
    kept = Kept(doubled)
    monkeypatch.setattr(internals, "compiled", lambda _spark, _name: None)

    assert _found(kept.of(_numbers(spark, 1))) == [3]
    assert _found(kept.of(_numbers(spark, 2))) == [5]
    assert doubled.times == 2


def test_a_class_that_no_jar_has_is_none(spark: SparkSession) -> None:
    assert internals.compiled(spark, "KeptPlan2") is None


def test_rows_of_another_schema_get_a_plan_of_their_own(spark: SparkSession) -> None:
    doubled = _Counted(_doubled)
    kept = Kept(doubled)

    assert _found(kept.of(_numbers(spark, 1))) == [3]
    assert _found(kept.of(spark.createDataFrame([(1.5,)], "n double"))) == [4.0]
    assert _found(kept.of(_numbers(spark, 2))) == [5]
    assert doubled.times == 2


def test_rows_under_other_settings_get_a_plan_of_their_own(spark: SparkSession) -> None:
    hour = _Counted(lambda rows: rows.select(F.hour(F.timestamp_seconds("n")).alias("found")))
    kept = Kept(hour)

    with having_set(spark, "spark.sql.session.timeZone", "UTC"):
        assert _found(kept.of(_numbers(spark, 0))) == [0]
    with having_set(spark, "spark.sql.session.timeZone", "Asia/Tokyo"):
        assert _found(kept.of(_numbers(spark, 0))) == [9]
    with having_set(spark, "spark.sql.session.timeZone", "UTC"):
        assert _found(kept.of(_numbers(spark, 3_600))) == [1]
    assert hour.times == 2


def test_for_many_rows_the_function_is_applied_each_time(spark: SparkSession) -> None:
    doubled = _Counted(_doubled)
    kept = Kept(doubled)

    assert _found(kept.of(_numbers(spark, 1))) == [3]
    with executing_for(spark, Amount.MANY):
        assert _found(kept.of(_numbers(spark, 2))) == [5]
        assert _found(kept.of(_numbers(spark, 3))) == [7]
    assert _found(kept.of(_numbers(spark, 4))) == [9]
    assert doubled.times == 3


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda rows: rows.agg(F.sum("n").alias("found")), id="an aggregate"),
        pytest.param(lambda rows: rows.where("n > 0").select(F.col("n").alias("found")), id="a filter"),
        pytest.param(
            lambda rows: rows.select(F.udf(lambda n: n, LongType())("n").alias("found")), id="in Python"
        ),
        pytest.param(
            lambda rows: rows.select((F.col("n") + F.floor(F.rand())).alias("found")), id="of chance"
        ),
        pytest.param(
            lambda rows: rows.select(
                F.when(F.current_timestamp() > datetime(2020, 1, 1, tzinfo=UTC), F.col("n")).alias("found")
            ),
            id="of the time of day",
        ),
        pytest.param(
            lambda rows: rows.selectExpr("IF(CAST('today' AS DATE) > DATE'2020-01-01', n, 0) AS found"),
            id="of the day, in a text",
        ),
        pytest.param(
            lambda rows: rows.selectExpr(
                "IF(timestamp_seconds(n) < ' Tomorrow ', n, 0) AS found",
            ),
            id="of the next day, in a text that is compared",
        ),
    ],
)
def test_what_cannot_be_kept_is_applied_to_each_frame(
    spark: SparkSession, function: Callable[[DataFrame], DataFrame]
) -> None:
    counted = _Counted(function)
    kept = Kept(counted)

    assert _found(kept.of(_numbers(spark, 7))) == [7]
    assert _found(kept.of(_numbers(spark, 8))) == [8]
    assert counted.times == 3  # one of them for the placeholder


def test_results_can_be_joined_with_each_other_and_with_themselves(spark: SparkSession) -> None:
    kept = Kept(_doubled)
    one, other = kept.of(_numbers(spark, 1, 2)).persist(), kept.of(_numbers(spark, 2, 3))

    assert _found(one.join(other, "found")) == [5]
    assert _found(one.join(one, "found")) == [3, 5]
    assert _found(one.union(other)) == [3, 5, 5, 7]
    one.unpersist()


def test_partitions_are_computed_at_the_same_time_by_functions_of_their_own(spark: SparkSession) -> None:
    """A JSON parser is not thread-safe."""
    texts = [f'{{"a": {n}}}' for n in range(2_000)]
    kept = Kept(lambda rows: rows.select(F.from_json("text", "a long")["a"].alias("found")))

    for _ in range(3):
        rows = spark.createDataFrame([(text,) for text in texts], "text string").repartition(4)
        assert sorted(row.found for row in kept.of(rows).collect()) == list(range(2_000))
