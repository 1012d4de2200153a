"""Directories of the lake, on a file system of this machine."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from lakehouse import storage


def test_names_are_those_of_files_and_directories_whatever_is_in_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = ["a,b", "0", "with space", "größe", ".hidden", "{x}", "c%20d"]
    for name in names:
        (tmp_path / name).write_text("x")
    (tmp_path / "below").mkdir()
    (tmp_path / "empty").mkdir()

    assert sorted(storage.names(spark, str(tmp_path))) == sorted([*names, "below", "empty"])
    assert storage.names(spark, str(tmp_path / "empty")) == []
    assert storage.names(spark, str(tmp_path / "absent")) == []
