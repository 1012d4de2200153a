"""The files of a table as the driver knows them: unreadable checksums and statistics, and several threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake, Move, TableSpec, data_files, upkeep
from lakehouse.storage.tables import delta_internals as delta
from lakehouse.storage.tables.entries import rows_of, stats_of
from lakehouse.storage.tables.pruning import Between, Near
from lakehouse.storage.tables.writing import upsert
from tests.support.damage import as_in_a_new_process

SPEC = TableSpec("silver", "numbers", StructType().add("k", LongType()), stats=("k",), change_feed=True)
EVERY = Near(((Between("k", 0, None),),))
UNREADABLE = {
    "empty": b"",
    "no text": b"\xff\xfe{",
    "a list": b"[]",
    "another kind": b'{"allFiles":7,"setTransactions":{},"tableSizeBytes":"x"}',
    "files without paths": b'{"allFiles":[{}],"setTransactions":[{}],"numFiles":1}',
}
LIKELY = {"another kind", "files without paths"}


@pytest.fixture
def path(lake: Lake) -> str:
    """Create a table with the numbers 0, 1 and 2, each in a version of its own after the first."""
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


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(content, id=name, marks=[] if name in LIKELY else [pytest.mark.soak])
        for name, content in UNREADABLE.items()
    ],
)
def test_a_checksum_that_cannot_be_read_stops_nothing(lake: Lake, path: str, content: bytes) -> None:
    spark = lake.spark
    checksum = Path(path, "_delta_log", f"{3:020}.crc")
    checksum.write_bytes(content)
    checksum.with_name(f".{checksum.name}.crc").unlink(missing_ok=True)
    as_in_a_new_process(spark)
    lake.ensure(SPEC)

    assert tables.begin(spark, path).candidates(EVERY).rows == 3
    assert tables.transactions(spark, path) == {"here": 2}
    check_files(spark, path, 3)
    assert tables.read(spark, path).count() == 3
    append(spark, path, 3)
    assert tables.transactions(spark, path) == {"here": 3}
    assert tables.begin(spark, path).candidates(EVERY).rows == 4
    as_in_a_new_process(spark)
    assert tables.transactions(spark, path) == {"here": 3}
    check_files(spark, path, 4)


def check_files(spark: SparkSession, path: str, count: int) -> None:
    """Compare what is reported about a table's files with those that exist."""
    size = sum(file.stat().st_size for file in Path(path).glob("*.parquet"))
    assert len(tables.files(spark, path)) == count
    assert tables.size_bytes(spark, path) == size
    assert upkeep.current_size(spark, path) == upkeep.Size(count, size)


def test_a_commit_that_the_driver_cannot_read_is_left_to_delta(spark: SparkSession, path: str) -> None:
    assert tables.begin(spark, path).candidates(EVERY).rows == 3
    append(spark, path, 3)

    def unreadable(*_given: object) -> str:
        return '{"commitInfo":'

    with patch("lakehouse.storage.spark.files.read_text", unreadable):
        assert tables.begin(spark, path).candidates(EVERY).rows == 4
        assert not tables.is_in_its_commits(spark, path)
        changed = tables.read_changes(spark, path, 4, 4).select("k", "_change_type", "_commit_version")
    assert [tuple(row) for row in changed.collect()] == [(3, "insert", 4)]


@pytest.mark.parametrize("stats", ["{", "null", "[]", "1", "", {}])
def test_statistics_that_cannot_be_read_are_none(stats: object) -> None:
    assert stats_of({"stats": stats}) == {}
    assert rows_of({"stats": stats}) is None
    assert data_files.file_of({"path": "a", "size": 1, "stats": stats}).rows is None


@pytest.mark.parametrize("stats", ["{", '{"numRecords":"x","minValues":7,"maxValues":{"k":[]}}'])
def test_statistics_that_nobody_understands_are_left_to_the_rows(
    spark: SparkSession, path: str, stats: str
) -> None:
    edit_commit(path, 3, lambda add: add | {"stats": stats})
    as_in_a_new_process(spark)

    for where in (EVERY, F.col("k") >= 0):
        commit = tables.begin(spark, path)
        assert commit.rows(commit.candidates(where)).count() == 3
    assert upsert_one(spark, path, 2) == 1
    assert sorted(row.k for row in tables.read(spark, path).collect()) == [0, 1, 2]


def test_a_commit_that_is_written_in_another_way_is_read_as_delta_reads_it(
    spark: SparkSession, path: str
) -> None:
    """Jackson accepts a string as a number."""
    assert tables.begin(spark, path).candidates(EVERY).rows == 3
    append(spark, path, 3)
    edit_commit(path, 4, lambda add: add | {"size": str(add["size"]), "dataChange": "true"})

    (file,) = tables.read_commit(spark, path, 4).appended
    assert (type(file["size"]), file["dataChange"]) == (int, True)
    assert tables.begin(spark, path).candidates(EVERY).rows == 4
    changed = tables.read_changes(spark, path, 4, 4)
    assert [row.k for row in changed.collect()] == [3]


def edit_commit(path: str, version: int, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite how a commit adds its file, and remove the commit's checksum."""
    file = Path(path, "_delta_log", f"{version:020}.json")
    actions = [json.loads(line) for line in file.read_text().split("\n") if line]
    edited = [action | {"add": edit(action["add"])} if "add" in action else action for action in actions]
    file.write_text("".join(f"{json.dumps(action)}\n" for action in edited))
    for checksum in (file.with_suffix(".crc"), *(Path(path, "_delta_log").glob(f".{version:020}.*"))):
        checksum.unlink(missing_ok=True)


def upsert_one(spark: SparkSession, path: str, number: int) -> int:
    commit, new = tables.begin(spark, path), local_frame(spark, [(number,)], SPEC.schema).persist()
    near = commit.candidates(Near(((Between("k", number, number),),)))
    return upsert(new, commit, near, ["k"]).rows


@pytest.mark.parametrize("wrong", ["x", 1.5, True, [], {}, None])
def test_what_statistics_say_in_another_way_is_unknown(wrong: object) -> None:
    stats = json.dumps({"numRecords": wrong, "minValues": wrong, "maxValues": {"k": wrong}})

    file = data_files.file_of({"path": "a", "size": 1, "stats": stats})
    assert (file.rows, file.bounds.least) == (None, {})
    assert Between("k", 5, 5).may_hold(file.bounds)


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
