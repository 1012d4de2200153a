"""Files on this machine's disk, through the classes in lakehouse/storage/spark/scala/disk."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from benchmarks.measuring import application
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec
from tests.support.hadoop_files import hadoop_writes
from tests.support.processes import running
from tests.support.seaweed import driver

LONG_S = 3600.0


def context(spark: SparkSession) -> Any:
    """Return the file context that Delta uses to write its log."""
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.FileContext.getFileContext(spark.sparkContext._jsc.hadoopConfiguration())


def path_of(spark: SparkSession, path: Path) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(str(path))


def rename(spark: SparkSession, source: Path, target: Path, *options: str) -> str:
    """Rename a file; return the class of the error, or "" if there is none."""
    jvm: Any = spark._jvm
    kinds = jvm.org.apache.hadoop.fs.Options.Rename
    gateway: Any = spark.sparkContext._gateway
    given = gateway.new_array(kinds, len(options))
    for place, name in enumerate(options):
        given[place] = kinds.valueOf(name)
    try:
        context(spark).rename(path_of(spark, source), path_of(spark, target), given)
    except Py4JJavaError as error:
        return str(error.java_exception.getClass().getSimpleName())
    return ""


def faults_of_children(pid: int) -> int:
    """Return how many pages the ended children of a process have used: a few hundred each."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[8])


def test_a_commit_starts_no_process(spark: SparkSession, lake: Lake) -> None:
    """If one did, each would; other work of the session may end a process during one of them."""
    numbers = lake.ensure(TableSpec("silver", "numbers", spark.range(1).schema, stats=("id",)))
    jvm = application()[1].pid
    faults = []
    for _ in range(3):
        before = faults_of_children(jvm)
        tables.append(spark.range(10), numbers)
        faults.append(faults_of_children(jvm) - before)
    assert min(faults) == 0
    assert spark.read.format("delta").load(numbers).count() == 30


def test_of_eight_that_rename_to_one_name_one_does(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(50):
        target, sources = tmp_path / f"commit-{number}", []
        for writer in range(8):
            sources.append(tmp_path / f"of-{writer}-{number}")
            sources[-1].write_text(str(writer))
        with ThreadPoolExecutor(8) as threads:
            said = list(threads.map(lambda source: rename(spark, source, target), sources))  # noqa: B023
        assert sorted(said) == ["", *["FileAlreadyExistsException"] * 7]
        assert target.read_text() == str(said.index(""))
        assert [source.exists() for source in sources] == [bool(one) for one in said]


def test_a_rename_that_may_replace_a_file_does_and_a_checksum_goes_with_its_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("new", "old"):
        hadoop_writes(spark, str(tmp_path / name), name)
    checksum = (tmp_path / ".new.crc").read_bytes()

    assert rename(spark, tmp_path / "new", tmp_path / "old") == "FileAlreadyExistsException"
    assert rename(spark, tmp_path / "new", tmp_path / "old", "OVERWRITE") == ""

    assert sorted(file.name for file in tmp_path.iterdir()) == [".old.crc", "old"]
    assert (tmp_path / "old").read_text() == "new"
    assert (tmp_path / ".old.crc").read_bytes() == checksum


def test_a_directory_is_renamed_too_and_what_is_missing_is_said(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert rename(spark, tmp_path / "one", tmp_path / "two") == ""
    assert [file.name for file in tmp_path.iterdir()] == ["two"]
    assert rename(spark, tmp_path / "one", tmp_path / "three") == "FileNotFoundException"


def test_permissions_are_those_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    system = path_of(spark, tmp_path).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    jvm: Any = spark._jvm
    file = tmp_path / "file"
    file.touch(0o644)
    for wanted in ("600", "644", "644", "755"):
        system.setPermission(path_of(spark, file), jvm.org.apache.hadoop.fs.permission.FsPermission(wanted))
        assert oct(file.stat().st_mode)[-3:] == wanted


def test_a_directory_of_a_group_stays_the_groups(spark: SparkSession, tmp_path: Path) -> None:
    """Directories made below one with the setgid bit have that bit, too."""
    tmp_path.chmod(0o2755)
    system = path_of(spark, tmp_path).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    system.mkdirs(path_of(spark, tmp_path / "table"))
    assert oct((tmp_path / "table").stat().st_mode)[-4:] == "2755"


@pytest.mark.soak
def test_two_drivers_lose_no_commit(tmp_path: Path) -> None:
    many = 300
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")}
    wanted = kept | {"LAKEHOUSE_HOME": str(tmp_path / "home"), "LAKEHOUSE_LAKE": str(tmp_path / "lake")}
    with (
        running(driver("one", many), wanted, tmp_path / "one") as one,
        running(driver("two", many), wanted, tmp_path / "two") as two,
    ):
        assert (one.wait(LONG_S), two.wait(LONG_S)) == (0, 0), one.errors + two.errors

    versions = [int(line.rsplit(" ", 1)[1]) for each in (one, two) for line in each.output.splitlines()]
    assert sorted(versions) == list(range(1, 1 + 2 * many))
    log = (tmp_path / "lake/silver/numbers/_delta_log").iterdir()
    assert sum(re.fullmatch(r"\d{20}\.json", file.name) is not None for file in log) == 1 + 2 * many
