"""Where a lake's tables are, which must never change, and what reading a missing table returns."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec
from tests.support.counting import counted

SPEC = TableSpec("silver", "numbers", StructType().add("n", "long"), stats=("n",))


@pytest.mark.parametrize("root", ["s3a://bucket/lake", "s3a://bucket/lake/"])
def test_tables_lie_below_the_root(spark: SparkSession, root: str) -> None:
    lake = Lake(spark, root)
    assert lake.path("gold", "metrics_1m") == "s3a://bucket/lake/gold/metrics_1m"


def test_a_table_that_has_not_been_made_has_its_columns_and_no_row_without_a_job(lake: Lake) -> None:
    with counted(lake.spark) as found:
        rows = lake.read_or_empty(SPEC)
        assert rows.where("n > 0").collect() == []
    assert (rows.schema, found.jobs) == (SPEC.schema, 0)
    assert not lake.exists("silver", "numbers")

    tables.append(lake.spark.range(2).toDF("n"), lake.ensure(SPEC))
    assert lake.read_or_empty(SPEC).count() == lake.read("silver", "numbers").count() == 2
