"""Tables that several jobs create at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse import tables
from lakehouse.tables import TableSpec

SPEC = TableSpec(
    "silver", "numbers", StructType([StructField("n", LongType())]), ("n",), fixed={"grace_s": "5"}
)


def test_the_beginnings_of_a_log_are_no_table_and_no_obstacle(spark: SparkSession, tmp_path: Path) -> None:
    """What another job's creation looks like before its commit."""
    log = tmp_path / "silver" / "numbers" / "_delta_log"
    log.mkdir(parents=True)

    assert not tables.exists(spark, str(log.parent))
    path = tables.ensure(spark, str(tmp_path), SPEC)

    assert tables.exists(spark, path)
    assert DeltaTable(path).metadata().configuration["lakehouse.grace_s"] == "5"


def test_a_table_that_several_create_at_once_is_created_once(spark: SparkSession, tmp_path: Path) -> None:
    jobs = 8
    with ThreadPoolExecutor(jobs) as pool:
        sessions = [spark.newSession() for _ in range(jobs)]
        paths = set(pool.map(lambda session: tables.ensure(session, str(tmp_path), SPEC), sessions))

    assert len(paths) == 1
    table = DeltaTable(paths.pop())
    assert table.version() == 0
    assert [field.name for field in table.schema().fields] == ["n"]
