"""The session: which plans it keeps, and for which lakes it is a brief one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.session import SparkSession as ConnectSession

from lakehouse.common.errors import VersionError
from lakehouse.settings import Settings
from lakehouse.storage.spark.properties import write
from lakehouse.storage.spark.session import build_session, is_small
from lakehouse.storage.tables import Lake
from tests.support import hostile as servers
from tests.support.hostile import hostile
from tests.support.pipeline import await_


def test_few_plans_are_kept_and_no_long_text_of_one(spark: SparkSession) -> None:
    """By default, Spark keeps a thousand, each with its literals, which may be names of 100 KB."""
    store: Any = spark._jsparkSession.sharedState().statusStore()
    for number in range(30):
        spark.range(1).where(F.lit(f"{number}" + "x" * 100_000) == F.col("id").cast("string")).collect()

    await_(lambda: store.executionsCount() <= 20)
    texts = [one.physicalPlanDescription() for one in pythons(spark, store.executionsList())]
    assert 0 < max(map(len, texts)) < 50_000


def pythons(spark: SparkSession, values: Any) -> list[Any]:
    """Return a Scala sequence as a list."""
    return list(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(values))  # type: ignore[union-attr]


def test_workers_in_python_find_no_module_in_the_working_directory(spark: SparkSession) -> None:
    path = F.udf(lambda: "\n".join(sys.path))
    (row,) = spark.range(1).select(path().alias("path")).collect()
    assert not {"", str(Path.cwd())}.intersection(row.path.split("\n"))
    assert "site-packages" in row.path


def test_properties_for_spark_submit_stay_on_their_lines(tmp_path: Path) -> None:
    write(tmp_path / "x.properties", {"spark.jars": "/a b\\c\nspark.master evil\r", "spark.app.name": "é"})
    text = (tmp_path / "x.properties").read_bytes().decode()
    assert text == "spark.jars /a b\\\\c\\nspark.master evil\\r\nspark.app.name é\n"


@pytest.mark.parametrize("status", [302, 307, 308])
def test_kafka_s_own_client_sends_nothing_on_to_where_a_token_endpoint_redirects(
    spark: SparkSession, status: int
) -> None:
    secured: Any = spark._jvm.org.apache.kafka.common.security.oauthbearer.internals.secured  # type: ignore[union-attr]
    with (
        hostile(servers.answering(b'{"access_token": "a.b.c"}')) as other,
        hostile(servers.redirecting(other.url, status)) as server,
    ):
        tokens = secured.HttpAccessTokenRetriever(
            "me", "s", None, None, server.url, 1, 1, 5_000, 5_000, False
        )
        with pytest.raises(
            Py4JError, match=r"Server redirected too many  times|unexpected response code 308"
        ):
            tokens.retrieve()
    assert b"Authorization: Basic bWU6cw==" in server.requests[0]
    assert [one for one in other.requests if one.strip()] == []


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


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_where_pyspark_would_use_spark_connect_nothing_starts(
    lake_settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "sc://127.0.0.1:1")
    with pytest.raises(VersionError) as refused:
        build_session(lake_settings, "remote")
    assert str(refused.value) == (
        "lakehouse calls Spark's JVM, which a Spark Connect session does not have: "
        f"unset {name} or run it with spark-submit (docs/where-it-runs.md)"
    )


def test_a_session_of_spark_connect_is_refused_by_the_lake() -> None:
    remote = ConnectSession.__new__(ConnectSession)  # without a server to connect to
    with pytest.raises(VersionError) as refused:
        Lake(cast("SparkSession", remote), "lake")
    assert str(refused.value) == (
        "lakehouse calls Spark's JVM, which a Spark Connect session does not have: "
        "create the session with build_session or run it with spark-submit (docs/where-it-runs.md)"
    )
