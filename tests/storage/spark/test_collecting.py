"""Rows for Python: one partition at a time, and with no trace left in the driver."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from lakehouse.storage.spark.collecting import streamed
from tests.support.counting import counted, jobs_kept

ROOT = Path(__file__).parents[3]


def test_rows_come_in_order_a_partition_at_a_time(spark: SparkSession) -> None:
    rows = spark.range(6, numPartitions=3).select("id", F.to_date(F.lit("2026-11-28")).alias("day"))

    with counted(spark) as counts:
        found = [(one.id, one.day.isoformat()) for one in streamed(rows)]

    assert found == [(number, "2026-11-28") for number in range(6)]
    assert counts.jobs == 3


def test_the_driver_keeps_nothing_of_rows_that_have_been_read(spark: SparkSession) -> None:
    rows = spark.range(4, numPartitions=2)
    joined, before = rows.join(F.broadcast(rows), "id"), jobs_kept(spark, patience_s=0)

    spark.sparkContext.setLocalProperty("spark.sql.execution.id", "999999999")  # a query that has ended

    assert sorted(streamed(joined)) == [Row(id=0), Row(id=1), Row(id=2), Row(id=3)]
    assert jobs_kept(spark, before) == []


def test_nobody_reads_rows_in_the_way_that_the_driver_keeps() -> None:
    files = [path for tree in ("lakehouse", "expectations", "jobs") for path in (ROOT / tree).rglob("*.py")]
    found = {
        path.name: text.count(".toLocalIterator(")
        for path in files
        if ".toLocalIterator(" in (text := path.read_text(encoding="utf-8"))
    }

    assert found == {"collecting.py": 1}
