"""States merged from any batches in any order, compared with plain-Python statistics of all values at once.

One frame holds every case; its values are dealt to batches, some of which get none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lakehouse.streams.transforms import statistics
from tests.oracles import metrics as oracle
from tests.support.chance import chance

BATCHES = 4
K = 200
# A single estimate is within 1.65 % in 99 of 100 sketches; twice that is safe for all of these.
RANK_ERROR = 2 * 0.0165

FIXED: dict[str, list[float]] = {
    "one value": [3.5],
    "one negative value": [-3.5],
    "two values": [1.0, 4.0],
    "three values of which the middle is the median": [9.0, 1.0, 2.0],
    "equal values": [0.1] * 37,
    "equal values and one other": [5.0] * 99 + [6.0],
    "zeros": [0.0] * 10,
    "tiny values": [1e-300, 2e-300, 3e-300],
    "values of every size": [10.0**exponent for exponent in range(-100, 101, 10)],
    "opposite values": [-1e9, 1e9, -1e9, 1e9, 0.5],
    "small spread far from zero": [1e6 + step / 100 for step in range(100)],
    "as many as are kept exactly": [float(value) for value in range(K)],
}


def drawn_cases(rng: Random) -> dict[str, list[float]]:
    return {
        "uniform": [rng.uniform(-1, 1) for _ in range(3000)],
        "long tail": [rng.lognormvariate(0, 2) for _ in range(3000)],
        "few distinct values": [float(rng.randrange(5)) for _ in range(2000)],
        "rising": [float(value) for value in range(2500)],
        "falling": [-float(value) for value in range(2500)],
        "two heaps": [rng.gauss(rng.choice([0, 1000]), 1) for _ in range(2000)],
        "just too many to be kept exactly": [rng.random() for _ in range(K + 1)],
        **{
            f"{n} values": [rng.gauss(50, 10) for _ in range(n)] for n in (2, 3, 7, 10, 20, 99, 100, 101, 199)
        },
    }


def folded(
    spark: SparkSession, cases: Mapping[str, Sequence[float]], rng: Random, k: int = K
) -> dict[str, Row]:
    """Deal the values to batches at random, reduce each batch separately and merge the results."""
    rows = [(case, rng.randrange(BATCHES), value) for case, values in cases.items() for value in values]
    rng.shuffle(rows)
    values = spark.createDataFrame(rows, "case string, batch int, value double").repartition(2)
    states = [state.alias(name) for name, state in statistics.aggregates(F.col("value"), k).items()]
    partials = values.groupBy("case", "batch").agg(*states).persist()
    total = partials.where("batch = 0").drop("batch")
    for batch in range(1, BATCHES):
        total = merge(total, partials.where(F.col("batch") == batch).drop("batch"))
    collected = total.withColumns(statistics.derived()).collect()
    partials.unpersist()
    return {row["case"]: row for row in collected}


def merge(left: DataFrame, right: DataFrame) -> DataFrame:
    joined = left.alias("left").join(right.alias("right"), ["case"], "full_outer")
    return joined.select(
        "case", *(state.alias(name) for name, state in statistics.merged("left", "right").items())
    )


def assert_describes(row: Row, values: Sequence[float], *, case: str = "", k: int = K) -> None:
    """Check that count, minimum and maximum are exact, moments up to rounding, and percentiles in bounds."""
    expected: Mapping[str, Any] = oracle.statistics(values)
    for name in ("count", "min", "max"):
        assert row[name] == expected[name], (case, name)
    size = math.fsum(map(abs, values))
    assert row["sum"] == pytest.approx(expected["sum"], rel=1e-9, abs=1e-12 * size), case
    assert row["avg"] == pytest.approx(expected["avg"], rel=1e-9, abs=1e-12 * size / len(values)), case
    for name in ("variance", "stddev"):
        assert row[name] == (
            None if expected[name] is None else pytest.approx(expected[name], rel=1e-9, abs=0)
        ), (case, name)
    for name, p in oracle.PERCENTILES.items():
        if len(values) <= k:
            assert row[name] == expected[name], (case, name)
        else:
            assert row[name] in values, (case, name)
            assert oracle.rank_error(expected["values"], p, row[name]) <= RANK_ERROR, (case, name)


@pytest.fixture(scope="module")
def fixed(spark: SparkSession) -> dict[str, Row]:
    return folded(spark, FIXED, chance(7))


@pytest.mark.parametrize("case", FIXED)
def test_states_merged_from_batches_describe_all_values(fixed: dict[str, Row], case: str) -> None:
    assert_describes(fixed[case], FIXED[case])


@pytest.mark.cases
@pytest.mark.parametrize("seed", [1, 2])
def test_neither_cuts_nor_order_change_what_is_described(spark: SparkSession, seed: int) -> None:
    rng = chance(seed)
    cases = drawn_cases(rng)

    rows = folded(spark, cases, rng)

    assert rows.keys() == cases.keys()
    for case, values in cases.items():
        assert_describes(rows[case], values, case=case)


def test_a_larger_sketch_keeps_more_values_exactly(spark: SparkSession) -> None:
    cases = {"ranks": [float(value) for value in range(1000)]}

    (row,) = folded(spark, cases, chance(3), k=1000).values()

    assert_describes(row, cases["ranks"], k=1000)


def test_a_single_value_has_no_variance_and_equal_values_have_none_at_all(fixed: dict[str, Row]) -> None:
    assert (fixed["one value"].variance, fixed["one value"].stddev) == (None, None)
    assert (fixed["equal values"].variance, fixed["equal values"].stddev) == (0.0, 0.0)


def test_a_percentile_is_the_least_value_with_enough_values_up_to_it(fixed: dict[str, Row]) -> None:
    ranks = fixed["as many as are kept exactly"]
    assert (ranks.p50, ranks.p90, ranks.p95, ranks.p99) == (99.0, 179.0, 189.0, 197.0)

    two = fixed["two values"]
    assert (two.p50, two.p90, two.p95, two.p99) == (1.0, 4.0, 4.0, 4.0)


def test_values_whose_sum_or_spread_is_beyond_a_double_do_not_stop_anything(spark: SparkSession) -> None:
    greatest = 1.7976931348623157e308
    cases = {
        "sum": [1e308, 1e308, 1e308],
        "negative sum": [-greatest] * 5,
        "spread": [-greatest, greatest, 1.0, 2.0],
        "squares": [1e200, -1e200, 0.0],
    }

    rows = folded(spark, cases, chance(5))

    for case, values in cases.items():
        expected = oracle.statistics_without_moments(values)
        assert {name: rows[case][name] for name in expected} == expected, case
    assert rows["sum"].sum == math.inf
    assert rows["negative sum"].sum == -math.inf
    assert not math.isfinite(rows["squares"].variance)
    assert rows["squares"].avg == 0.0


def test_a_mean_is_merged_without_leaving_the_range_of_a_double(spark: SparkSession) -> None:
    """The second batch is larger: the difference between the means, times its count, is infinite."""
    values = spark.createDataFrame(
        [("mean", 0, -1e307), *[("mean", 1, 1e307)] * 17], "case string, batch int, value double"
    )
    states = [state.alias(name) for name, state in statistics.aggregates(F.col("value"), K).items()]
    partials = values.groupBy("case", "batch").agg(*states)

    (row,) = merge(partials.where("batch = 0"), partials.where("batch = 1")).collect()

    assert row["count"] == 18
    assert row["avg"] == pytest.approx(16e307 / 18, rel=1e-9)


@pytest.mark.usefixtures("spark")
def test_the_schemas_name_the_columns_that_are_merged_and_derived() -> None:
    assert statistics.SHOWN.names == [
        "count",
        "sum",
        "min",
        "max",
        "avg",
        "variance",
        "stddev",
        "p50",
        "p90",
        "p95",
        "p99",
    ]
    assert statistics.FOR_MERGES.names == ["m2", "sketch"]
    made = {*statistics.aggregates(F.col("value"), K), *statistics.derived()}
    assert made == {*statistics.SHOWN.names, *statistics.FOR_MERGES.names}


def test_the_oracle_measures_rank_errors_by_hand_made_examples() -> None:
    ordered = [1.0, 2.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]

    assert [oracle.percentile(ordered, p) for p in (0.1, 0.11, 0.4, 0.41, 0.95, 1.0)] == [1, 2, 2, 3, 8, 8]
    assert oracle.rank_error(ordered, 0.25, 2.0) == 0
    assert oracle.rank_error(ordered, 0.4, 3.0) == 0
    assert oracle.rank_error(ordered, 0.5, 5.0) == pytest.approx(0.1)
    assert oracle.rank_error(ordered, 0.5, 2.0) == pytest.approx(0.1)
    assert oracle.rank_error(ordered, 0.99, 0.0) == pytest.approx(0.99)
