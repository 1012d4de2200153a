"""Files written without Delta's query: the same rows, changes and statistics as Delta's own."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakehouse.storage import tables
from lakehouse.storage.spark import internals
from lakehouse.storage.tables import DELETED, Lake, TableSpec
from lakehouse.storage.tables import delta_internals as delta

_TYPES = {
    "key": LongType(),
    "text": StringType(),
    "at": TimestampType(),
    "day": DateType(),
    "small": IntegerType(),
    "double": DoubleType(),
    "money": DecimalType(20, 4),
    "flag": BooleanType(),
    "bytes": BinaryType(),
    "list": ArrayType(StringType()),
    "absent": StringType(),
}
SPEC = TableSpec(
    "gold",
    "kinds",
    StructType([StructField(name, kind) for name, kind in _TYPES.items()]),
    ("key", "text", "at", "day", "double", "money", "absent"),
    change_feed=True,
    is_merged=True,
)
_GIVEN = StructType([field for field in SPEC.schema if field.name != "absent"])
_ROWS = (
    (1, "a" * 40, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), date(1582, 1, 1), 1, -0.0, "0.0001"),
    (2, "😀" * 31 + "éz", datetime(2026, 11, 29, 0, 0, 0, 1, UTC), date(2026, 2, 28), 2, float("nan"), "-7"),
    (3, "", None, None, None, float("-inf"), "9999999999999999.9999"),
    (4, None, datetime(2026, 3, 29, 1, 30, tzinfo=UTC), date(9999, 12, 31), -4, 0.0, None),
    (5, "\uffff" * 70, None, None, 5, None, None),
)
_OTHERS: tuple[tuple[Any, ...], ...] = (
    (True, b"\x00\xff", ["a", None]),
    (False, b"", []),
    (None, None, None),
)


def test_statistics_rows_and_changes_are_those_that_delta_writes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = _filled(spark, tmp_path / "ours")
    with monkeypatch.context() as without:
        without.setattr(internals, "compiled", lambda _spark, _name: None)
        deltas = _filled(spark, tmp_path / "delta")

    assert _statistics(spark, ours) == _statistics(spark, deltas)
    assert _statistics(spark, ours)[0]["minValues"]["at"] == "1969-12-31T23:59:59.999Z"
    assert _statistics(spark, ours)[0]["nullCount"]["absent"] == 5
    assert repr(_rows(spark, ours)) == repr(_rows(spark, deltas))
    assert repr(_changes(spark, ours)) == repr(_changes(spark, deltas))
    assert [row["_change_type"] for row in _changes(spark, ours)[5:]] == [
        "delete",
        "update_postimage",
        "update_preimage",
        "insert",
    ]


def test_our_own_tables_are_written_by_us_and_without_a_query_of_deltas(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Lake(spark, str(tmp_path)).ensure(SPEC)
    monkeypatch.setattr(delta, "records_in", lambda _file: pytest.fail("Delta has written"))

    assert tables.append(_frame(spark), path).rows == 5


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (key > 0)",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '2')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.autoOptimize.optimizeWrite' = 'true')",
        "ALTER TABLE {t} UNSET TBLPROPERTIES ('delta.dataSkippingStatsColumns')",
        "SET spark.databricks.delta.stats.collect = false",
    ],
)
def test_what_asks_for_more_is_left_to_delta(spark: SparkSession, tmp_path: Path, change: str) -> None:
    own = spark.newSession()
    path = Lake(own, str(tmp_path)).ensure(SPEC)
    own.sql(change.format(t=f"delta.`{path}`"))
    rows = own.createDataFrame(_frame(spark).collect(), _GIVEN)

    assert _plain(own, path, rows) is None
    assert tables.append(rows, path).rows == 5
    assert tables.read(own, path).count() == 5


def test_a_failed_write_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    path = Lake(spark, str(tmp_path)).ensure(SPEC)
    late = F.when(F.col("key") == 4, F.raise_error(F.lit("broken"))).otherwise(F.col("text"))

    with pytest.raises(PySparkException, match="broken"):
        tables.append(_frame(spark).withColumn("text", late.cast("string")), path)

    assert list(Path(path).glob("*.parquet")) == []


def test_no_rows_make_no_file(spark: SparkSession, tmp_path: Path) -> None:
    path = Lake(spark, str(tmp_path)).ensure(SPEC)

    assert tables.append(_frame(spark).where("key > 9"), path).rows == 0

    assert list(Path(path).glob("*.parquet")) == []


def _filled(spark: SparkSession, lake: Path) -> str:
    """Append five rows; then delete one, change one and insert one."""
    path = Lake(spark, str(lake)).ensure(SPEC)
    tables.append(_frame(spark), path)
    changed = _frame(spark).where("key in (1, 2, 3)").withColumn("small", F.lit(8))
    changed = changed.withColumn("key", F.when(F.col("key") == 3, 6).otherwise(F.col("key")).cast("long"))
    marked = changed.withColumn(DELETED, F.col("key") == 1).persist()
    tables.replace(marked, path, ["key"], within=F.lit(True))
    marked.unpersist()
    return path


def _frame(spark: SparkSession) -> DataFrame:
    rows = []
    for number, row in enumerate(_ROWS):
        *first, money = row
        rows.append((*first, None if money is None else Decimal(str(money)), *_OTHERS[number % 3]))
    return spark.createDataFrame(rows, _GIVEN).coalesce(1)


def _plain(spark: SparkSession, path: str, rows: DataFrame) -> Any:
    txn = delta.start(spark, delta.log_of(spark, path))
    plain = internals.compiled(spark, "PlainFiles")
    assert plain is not None
    return plain.write(txn, internals.java_frame(rows))


def _statistics(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    newest = tables.version_of(spark, path)
    added = [
        file
        for version in (newest - 1, newest)
        for file in tables.read_commit(spark, path, version).of("add")
    ]
    return [json.loads(file["stats"]) for file in added]


def _rows(spark: SparkSession, path: str) -> list[Row]:
    return tables.read(spark, path).orderBy("key").collect()


def _changes(spark: SparkSession, path: str) -> list[Row]:
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", 0).format("delta").load(path)
    ordered = feed.drop("_commit_timestamp").orderBy("_commit_version", "key", "_change_type")
    return ordered.collect()
