"""Directories of the lake, on a file system of this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.spark import storage


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


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_text_that_is_to_be_new_is_not_written_over_another(
    spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    path = f"{scheme}{tmp_path}/below/0"
    storage.write_text(spark, path, "first", anew=True)
    with pytest.raises(FileExistsError):
        storage.write_text(spark, path, "second", anew=True)
    assert storage.read_text(spark, path) == "first"
    assert [file.name for file in (tmp_path / "below").iterdir()] == ["0"]


def test_of_many_that_write_a_new_text_one_does(spark: SparkSession, tmp_path: Path) -> None:
    def write(number: int) -> int | None:
        try:
            storage.write_text(spark, f"{tmp_path}/0", str(number), anew=True)
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        written = [one for one in pool.map(write, range(32)) if one is not None]
    assert [storage.read_text(spark, f"{tmp_path}/0")] == [str(one) for one in written]


def test_elsewhere_hadoop_writes_the_text(spark: SparkSession, tmp_path: Path) -> None:
    """Its view of a file system under a scheme of its own stands for another machine's."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    mount = "fs.viewfs.mounttable.there.link./lake"
    configuration.set(mount, tmp_path.as_uri())
    try:
        path = "viewfs://there/lake/below/0"
        storage.write_text(spark, path, "first", anew=True)
        with pytest.raises(FileExistsError):
            storage.write_text(spark, path, "second", anew=True)
        storage.write_text(spark, path, "third")
        assert storage.read_text(spark, path) == "third"
    finally:
        configuration.unset(mount)
    assert (tmp_path / "below" / "0").read_text() == "third"


def hadoop_writes(spark: SparkSession, path: str, text: str) -> None:
    """Write a file with the checksum that Hadoop keeps beside it."""
    jvm: Any = spark._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    stream = where.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).create(where)
    stream.write(bytearray(text, "utf-8"))
    stream.close()
