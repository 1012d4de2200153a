"""Tables say which format they were written in, and later formats are refused."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from lakehouse.common.errors import TableError
from lakehouse.storage.tables import Lake, TableSpec
from lakehouse.storage.tables.log import properties

SPEC = TableSpec("gold", "numbers", StructType().add("n", "long"), stats=("n",))


def set_format(lake: Lake, path: str, value: str) -> None:
    lake.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('lakehouse.format' = '{value}')")


def test_a_new_table_says_format_1_and_one_that_says_none_gets_it(lake: Lake) -> None:
    path = lake.ensure(SPEC)
    assert properties(lake.spark, path)["lakehouse.format"] == "1"

    lake.spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('lakehouse.format')")
    lake.ensure(SPEC)
    assert properties(lake.spark, path)["lakehouse.format"] == "1"


@pytest.mark.parametrize("later", ["2", "10", "one"])
def test_a_later_format_is_refused_by_writers_and_readers(lake: Lake, later: str) -> None:
    path = lake.ensure(SPEC)
    set_format(lake, path, later)
    for ensure in (lake.ensure, lake.ensure_source):
        with pytest.raises(
            TableError, match=rf"gold.numbers was written by a later version of lakehouse, in format {later}"
        ):
            ensure(SPEC)
