"""Hadoop's paths are translated, and every reader finds a lake by any of its names."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakehouse.common.paths import is_local, lake_address, local_path, location
from lakehouse.operations.catalog.spark_sql import ask
from lakehouse.serving.reading.gold import Gold
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec, direct
from tests.support.served_lakes import NOON_MS, ServedLake, minute
from tests.support.streams import METRICS_1M


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a/lake", "/a/lake"),
        ("lake", "lake"),
        ("file:/a/lake", "/a/lake"),
        ("file:///a/lake", "/a/lake"),
        ("file://localhost/a/lake", "/a/lake"),
        ("file:///a/l%20k e#1", "/a/l%20k e#1"),
        ("s3a://bucket/lake", "s3://bucket/lake"),
        ("gs://bucket/lake", "gs://bucket/lake"),
        ("dbfs:/bucket", "dbfs:/bucket"),
        ("/a:b/lake", "/a:b/lake"),
    ],
)
def test_a_path_of_hadoop_s_is_one_of_deltalake_s(path: str, found: str) -> None:
    assert location(path) == found
    assert is_local(path) == ("bucket" not in path)
    assert local_path(path) == (Path(found) if is_local(path) else None)


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_gold_is_read_by_every_name_of_its_lake(
    scheme: str, session_settings: Settings, tmp_path: Path
) -> None:
    lake = ServedLake(session_settings.changed({"lake": str(tmp_path / "a lake")}))
    lake.write(METRICS_1M, [minute()])
    gold = Gold(f"{scheme}{lake.settings.lake}", [METRICS_1M])
    found = gold.row(METRICS_1M, {"service_id": "auth", "metric_name": "cpu", "window_start": NOON_MS * 1000})
    assert [row["avg"] for row in found.rows] == [2.5]


NAMES = {
    "signs": "a %#?,;:@&=+!$'\"`|^~*<> 100% %zz",
    "brackets": "[a]{b}(c)",
    "letters": "größe 東京 🚚 \u2028\u0085",
    "blanks": " a ",
    "length": "x" * 200,
}
LATE = TableSpec("ops", "late", StructType().add("at", "timestamp").add("n", "long"), ("at",))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_lake_may_have_any_name_that_its_readers_take(name: str, tmp_path: Path) -> None:
    lake = lake_address(f"{tmp_path}/{name}")
    now = datetime.now(UTC)
    for number in range(2):
        direct.append(lake, LATE, [{"at": now, "n": number}])
    assert [row["n"] for _, rows in direct.newest_first(lake, LATE, "at") for row in rows()] in (
        [0, 1],
        [1, 0],
    )
    assert direct.rows_where(lake, LATE, ["n"], ds.field("n") == 1) == [{"n": 1}]
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.soak
def test_spark_finds_a_lake_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    name = "".join((NAMES["signs"], NAMES["brackets"], NAMES["letters"]))
    lake = Lake(spark, lake_address(f"{tmp_path}/{name}"))
    direct.append(lake.root, LATE, [{"at": datetime.now(UTC), "n": 1}])
    assert lake.exists("ops", "late")
    path = lake.ensure(LATE)
    appended = spark.range(2, 4, 1, 2).selectExpr("current_timestamp() AS at", "id AS n")
    tables.append(appended, path)
    newest = tables.version_of(spark, path)
    assert sorted(row.n for row in tables.read_changes(spark, path, newest, newest).collect()) == [2, 3]
    tables.define_view(spark, LATE, path)
    found = ask(spark, "SELECT n FROM ops.late ORDER BY n", limit=9)
    spark.sql("DROP DATABASE ops CASCADE")
    assert [row.n for row in found.rows] == [1, 2, 3]
    assert len(direct.rows_where(lake.root, LATE, ["n"], ds.field("n") > 0)) == 3
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("sign", ["%41", "%2f", "\\", "\n", "\t", "\x7f", "\udc80"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_name_that_a_reader_would_take_for_another_is_refused(scheme: str, sign: str) -> None:
    said = re.escape(f"the path {f'/a/x{sign}y'!r} contains {sign!r}")
    with pytest.raises(ValueError, match=said):
        lake_address(f"{scheme}/a/x{sign}y")


@pytest.mark.parametrize("sign", ["%41", " ", "~", "ü", "*", "#", "?", "\\", "\n", "[", "//"])
def test_a_url_whose_characters_deltalake_escapes_once_too_often_is_refused(sign: str) -> None:
    with pytest.raises(ValueError, match="a remote lake's address may contain only ASCII letters, digits"):
        lake_address(f"s3a://bucket/x{sign}y")
    assert lake_address("s3a://bucket/a-1_b.c=d+e,f") == "s3a://bucket/a-1_b.c=d+e,f"
    assert lake_address("abfss://box@account.dfs/lake") == "abfss://box@account.dfs/lake"


@pytest.mark.parametrize(
    "given", ["s3a://bucket/lake", "s3a://bucket/lake/", "s3://bucket/lake", "s3n://bucket/lake/"]
)
def test_a_lake_on_s3_has_the_name_that_hadoop_s_client_has_for_it(given: str) -> None:
    assert lake_address(given) == "s3a://bucket/lake"


def test_a_relative_lake_and_one_of_a_home_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    assert lake_address("lake/../other/") == f"{tmp_path}/other"
    assert lake_address("./c:/lake") == f"{tmp_path}/c:/lake"
    assert lake_address("~/lake") == "/home/ada/lake"
    with pytest.raises(
        ValueError, match="the home directory of the user in ~nobody-of-that-name/lake is unknown"
    ):
        lake_address("~nobody-of-that-name/lake")
