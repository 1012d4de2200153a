"""Sums of amounts near the limits of decimal(38,9), in every possible order."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import permutations

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.storage.spark.collecting import local_frame
from lakehouse.streams.transforms import decimals

SCHEMA = StructType().add("case", "string").add("place", "integer").add("amount", decimals.TYPE)
MOST = f"{'9' * 29}.{'9' * 9}"
TOTALS: dict[tuple[str, ...], str | None] = {
    ("6e28", "6e28", "-6e28"): "6e28",
    ("6e28", "6e28", "-6e28", "-6e28"): "0",
    ("6e28", "6e28"): None,
    ("-6e28", "-6e28", "1"): None,
    (MOST, "0.000000001"): None,
    (MOST, "0.000000001", "-0.000000001"): MOST,
    (MOST, MOST, f"-{MOST}", "-0.000000001"): f"{MOST[:-1]}8",
    (f"-{MOST}", f"-{MOST}", MOST, "0.5"): f"-{'9' * 29}.499999999",
    ("999999999999999.999999999", "0.000000001", "-1e15"): "0",
}
"""Amounts, mapped to their total, or to None if decimal(38,9) cannot hold it."""


def cases() -> Iterator[tuple[str, tuple[str, ...], str | None]]:
    for amounts, total in TOTALS.items():
        for order in dict.fromkeys(permutations(amounts)):
            yield " ".join(order), order, total


EXPECTED = {name: None if total is None else Decimal(total) for name, _, total in cases()}


@pytest.fixture(scope="module")
def amounts(spark: SparkSession) -> DataFrame:
    rows = [(name, place, Decimal(one)) for name, order, _ in cases() for place, one in enumerate(order)]
    return local_frame(spark, rows, SCHEMA)


def test_a_total_that_fits_is_known_whatever_was_added_in_between(amounts: DataFrame) -> None:
    totals = amounts.groupBy("case").agg(decimals.total("amount").alias("total"))
    assert {row["case"]: row["total"] for row in totals.collect()} == EXPECTED


def test_so_is_the_last_of_running_totals(amounts: DataFrame) -> None:
    running = decimals.total("amount", Window.partitionBy("case").orderBy("place")).alias("total")
    totals = (
        amounts.select("case", "place", running)
        .groupBy("case")
        .agg(F.max_by("total", "place").alias("total"))
    )
    assert {row["case"]: row["total"] for row in totals.collect()} == EXPECTED


def test_a_total_of_positive_amounts_is_null_where_it_does_not_fit_or_one_is_not_known(
    spark: SparkSession,
) -> None:
    rows = [
        ("fits", 0, Decimal(MOST)),
        ("beyond", 0, Decimal("6e28")),
        ("beyond", 1, Decimal("6e28")),
        ("unknown", 0, Decimal(1)),
        ("unknown", 1, None),
    ]
    frame = local_frame(spark, rows, SCHEMA)
    totals = frame.groupBy("case").agg(decimals.total_of_positive("amount").alias("total"))
    found = {row["case"]: row["total"] for row in totals.collect()}
    assert found == {"fits": Decimal(MOST), "beyond": None, "unknown": None}
