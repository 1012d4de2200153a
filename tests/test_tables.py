"""Tables that several jobs create at the same moment."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.tables import TableSpec

SPEC = TableSpec(
    "silver", "numbers", StructType([StructField("n", LongType())]), ("n",), fixed={"grace_s": "5"}
)


def test_the_beginnings_of_a_log_are_no_table_and_the_way_out_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What a job that was killed before the commit of its creation leaves."""
    table = tmp_path / "silver" / "numbers"
    (table / "_delta_log").mkdir(parents=True)

    assert not tables.exists(spark, str(table))
    with pytest.raises(TableError, match=f"silver.numbers could not be created.* remove {table} and run"):
        tables.ensure(spark, str(tmp_path), SPEC)

    shutil.rmtree(table)
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
