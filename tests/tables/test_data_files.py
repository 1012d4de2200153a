"""The files of a table as the driver knows them: unreadable notes beside the log, and several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from lakehouse import tables
from lakehouse.tables import Lake, Move, TableSpec, data_files
from lakehouse.tables import delta_internals as delta
from lakehouse.tables.entries import rows_of, stats_of
from lakehouse.tables.pruning import Between, Near
from tests.damage import as_in_a_new_process
from tests.frames import local_frame

SPEC = TableSpec("silver", "numbers", StructType().add("k", LongType()), stats=("k",), change_feed=True)
EVERY = Near(((Between("k", 0, None),),))
UNREADABLE = {
    "empty": b"",
    "zeros": bytes(100),
    "no text": b"\xff\xfe{",
    "no json": b"not JSON",
    "cut off": b'{"txnId":"',
    "null": b"null",
    "a list": b"[]",
}


@pytest.fixture
def path(lake: Lake) -> str:
    """A table with the numbers 0, 1 and 2, each in a version of its own after the first one."""
    location = lake.ensure(SPEC)
    for number in range(3):
        append(lake.spark, location, number)
    return location


def append(spark: SparkSession, path: str, number: int) -> None:
    tables.append(
        local_frame(spark, [(number,)], SPEC.schema),
        path,
        [Move("here", number - 1 if number else None, number)],
    )


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_checksum_that_cannot_be_read_stops_nothing(spark: SparkSession, path: str, content: bytes) -> None:
    checksum = Path(path, "_delta_log", f"{3:020}.crc")
    checksum.write_bytes(content)
    checksum.with_name(f".{checksum.name}.crc").unlink(missing_ok=True)
    as_in_a_new_process(spark)

    assert tables.begin(spark, path).candidates(EVERY).rows == 3
    assert tables.transactions(spark, path) == {"here": 2}
    assert len(tables.files(spark, path)) == 3
    assert tables.size_bytes(spark, path) == sum(file.stat().st_size for file in Path(path).glob("*.parquet"))
    assert tables.read(spark, path).count() == 3
    append(spark, path, 3)
    assert tables.transactions(spark, path) == {"here": 3}
    assert tables.begin(spark, path).candidates(EVERY).rows == 4


def test_a_commit_that_the_driver_cannot_read_is_left_to_delta(spark: SparkSession, path: str) -> None:
    assert tables.begin(spark, path).candidates(EVERY).rows == 3
    append(spark, path, 3)

    def unreadable(*_given: object) -> str:
        return '{"commitInfo":'

    with patch("lakehouse.spark.storage.read_text", unreadable):
        assert tables.begin(spark, path).candidates(EVERY).rows == 4
        assert not tables.is_in_its_commits(spark, path)
        changed = tables.read_changes(spark, path, 4, 4).select("k", "_change_type", "_commit_version")
    assert [tuple(row) for row in changed.collect()] == [(3, "insert", 4)]


@pytest.mark.parametrize("stats", ["{", "null", "[]", "1", ""])
def test_statistics_that_cannot_be_read_are_none(stats: str) -> None:
    assert stats_of({"stats": stats}) == {}
    assert rows_of({"stats": stats}) is None
    assert data_files.file_of({"path": "a", "size": 1, "stats": stats}).rows is None


def test_several_threads_get_the_files_of_their_versions_and_the_newest_stay_known(
    spark: SparkSession, path: str
) -> None:
    snapshots = [tables.snapshot(spark, path, version) for version in (1, 2, 3)] * 8
    as_in_a_new_process(spark)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda one: data_files.files_of(spark, path, one), snapshots))

    assert [one.version for one in found] == [delta.version_of(one) for one in snapshots]
    assert [len(one.by_name) for one in found] == [one.version for one in found]
    assert data_files._known[path].version == 3
