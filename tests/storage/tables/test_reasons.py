"""Each write that removes or changes rows says why in its commit, alongside its moves and change feed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.storage import tables
from lakehouse.storage.tables import DELETED, Lake, Move, TableSpec, Why

SPEC = TableSpec(
    "silver", "numbers", StructType().add("k", "long").add("v", "long"), stats=("k",), change_feed=True
)


@pytest.fixture
def path(lake: Lake) -> str:
    return lake.ensure(SPEC)


@pytest.fixture
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(spark, str(tmp_path_factory.mktemp("lake")))


def rows(spark: SparkSession, *found: tuple[int, int]) -> DataFrame:
    return spark.createDataFrame(list(found), SPEC.schema)


def upserted(spark: SparkSession, path: str, why: Why | None) -> object:
    commit = tables.begin(spark, path)
    near = commit.candidates(None)
    return tables.upsert(rows(spark, (1, 11)).persist(), commit, near, ["k"], [Move("q", None, 3)], why=why)


def deleted_and_updated(spark: SparkSession, path: str, why: Why | None) -> object:
    gone = rows(spark, (1, 0)).withColumn(DELETED, F.lit(True))
    return tables.replace(gone, path, ["k"], within=F.lit(True), why=why)


WRITES: dict[str, tuple[Callable[[SparkSession, str, Why | None], object], list[tuple[str, int, int]]]] = {
    "upsert": (upserted, [("update_postimage", 1, 11), ("update_preimage", 1, 10)]),
    "replace": (deleted_and_updated, [("delete", 1, 10)]),
    "delete": (
        lambda spark, path, why: tables.delete(spark, path, F.col("k") == 1, why=why),
        [("delete", 1, 10)],
    ),
    "update": (
        lambda spark, path, why: tables.update(spark, path, F.col("k") == 1, {"v": F.lit(12)}, why=why),
        [("update_postimage", 1, 12), ("update_preimage", 1, 10)],
    ),
    "update_matched": (
        lambda spark, path, why: tables.update_matched(
            rows(spark, (1, 13)), path, ["k"], F.lit(True), {"v": F.col("s.v")}, within=F.lit(True), why=why
        ),
        [("update_postimage", 1, 13), ("update_preimage", 1, 10)],
    ),
    "keep_one": (
        lambda spark, path, why: tables.keep_one(spark, path, ["k"], F.lit(True), why=why),
        [("delete", 2, 20)],
    ),
}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, Why.CORRECTED) for name in WRITES),
        ("delete", None),
    ],
)
def test_a_write_says_why_and_the_change_feed_gets_its_rows(
    spark: SparkSession, path: str, name: str, why: Why | None
) -> None:
    write, changed = WRITES[name]
    tables.append(rows(spark, (1, 10), (2, 20), (2, 20), (3, 30)), path)

    write(spark, path, why)

    version = tables.version_of(spark, path)
    entry = tables.read_commit(spark, path, version)
    assert (version, entry.why, entry.rewrites) == (2, why, True)
    feed = tables.read_changes(spark, path, version, version).select("_change_type", "k", "v")
    assert sorted(map(tuple, feed.collect())) == changed
    assert tables.transactions(spark, path) == ({"q": 3} if name == "upsert" else {})
