"""Where paths of Hadoop's lie, and that who reads without Spark finds a lake by any of its names."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.serving.gold import Gold
from lakehouse.settings import Settings
from lakehouse.spark.paths import is_local, local_path, location
from tests.serving.lakes import NOON_MS, ServedLake, minute
from tests.streams import METRICS_1M


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
        ("s3n://bucket/lake", "s3://bucket/lake"),
        ("gs://bucket/lake", "gs://bucket/lake"),
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
    lake = ServedLake(session_settings.model_copy(update={"lake": str(tmp_path / "a lake")}))
    lake.write(METRICS_1M, [minute()])
    gold = Gold(f"{scheme}{lake.settings.lake}", [METRICS_1M])
    found = gold.row(METRICS_1M, {"service_id": "auth", "metric_name": "cpu", "window_start": NOON_MS * 1000})
    assert [row["avg"] for row in found.rows] == [2.5]
