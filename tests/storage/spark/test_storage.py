"""Directories of the lake on a file system of this machine."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from lakehouse.storage.spark import files as storage
from tests.support.hadoop_files import hadoop_writes


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


def test_a_text_is_written_whole_in_place_of_another_and_read_by_hadoop(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = f"{tmp_path}/below/größe"
    hadoop_writes(spark, path, "of an earlier run")
    assert (tmp_path / "below" / ".größe.crc").exists()
    for text in ("first\nsecond €", ""):
        storage.write_text(spark, path, text)
        assert storage.read_text(spark, path) == text
        assert storage.read_text(spark, f"file://{path}") == text
    assert storage.names(spark, f"{tmp_path}/below") == ["größe"]


def test_elsewhere_hadoop_writes_the_text(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop's ViewFs, which has a scheme of its own, stands in for another machine's file system."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    mount = "fs.viewfs.mounttable.there.link./lake"
    configuration.set(mount, tmp_path.as_uri())
    try:
        path = "viewfs://there/lake/below/0"
        for text in ("first", "second"):
            storage.write_text(spark, path, text)
            assert storage.read_text(spark, path) == text
    finally:
        configuration.unset(mount)
    assert (tmp_path / "below" / "0").read_text() == "second"
