"""The session: what it keeps of the JVM's names."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

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
