"""The session: what it keeps of the JVM's names, and for which lakes it is a brief one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.session import is_small
from tests.counting import counted


def test_the_jvm_is_asked_for_a_name_once_and_for_what_it_stands_for_each_time(spark: SparkSession) -> None:
    jvm: Any = spark._jvm

    def use() -> None:
        assert jvm.java.util.Objects.isNull is not None
        assert jvm.java.lang.Integer.MAX_VALUE == 2**31 - 1
        assert getattr(jvm, "java.util.Objects").isNull(None)
        F.lower("name")

    use()
    with counted(spark) as counts:
        use()

    assert counts.calls == 4  # the value of the field, isNull, the column and its function


def test_a_session_of_a_query_shares_the_names(spark: SparkSession) -> None:
    assert spark.newSession()._jvm is spark._jvm


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_lake_is_small_up_to_64_mib_however_its_directory_is_written(tmp_path: Path, prefix: str) -> None:
    lake = f"{prefix}{tmp_path}"
    assert is_small(lake)
    assert is_small(f"{lake}/absent")

    with (tmp_path / "part").open("wb") as part:
        part.truncate(64 * 1024 * 1024)
    assert is_small(lake)
    (tmp_path / "another").write_bytes(b"x")
    assert not is_small(lake)


@pytest.mark.parametrize("lake", ["s3a://bucket/lake", "hdfs://name/lake", "dbfs:/lake"])
def test_a_lake_elsewhere_is_not_taken_for_a_small_one(lake: str) -> None:
    assert not is_small(lake)
