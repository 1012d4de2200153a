"""Files of a table left empty or truncated by a power failure, and commits that wait for the disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from lakehouse.common.errors import TableError
from lakehouse.common.events import Event, EventLog, Kind, note, noting
from lakehouse.common.memory import forget
from lakehouse.common.state_files import sync
from lakehouse.engine.ops_tables import event_table
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake, Move, TableSpec, lasting
from lakehouse.storage.tables import delta_internals as delta
from tests.support import pipeline
from tests.support.damage import DAMAGES, as_in_a_new_process, damage, file_of, newest_commit

SPEC = TableSpec("silver", "numbers", StructType().add("k", LongType()), stats=("k",), change_feed=True)
SOURCE = "query reads source"


@pytest.fixture(autouse=True)
def sure_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "_SURELY_S", 0)


@pytest.fixture
def path(lake: Lake) -> str:
    """Create a table with the numbers 0, 1 and 2, each in a version of its own after the first."""
    location = lake.ensure(SPEC)
    for number in range(3):
        append(lake.spark, location, number)
    return location


def append(spark: SparkSession, path: str, number: int) -> None:
    moves = [Move(SOURCE, number or None, number + 1)]
    tables.append(local_frame(spark, [(number,)], SPEC.schema), path, moves)


def numbers(spark: SparkSession, path: str) -> list[int]:
    """Return the table's numbers, which every reader has to see."""
    found = sorted(row.k for row in tables.read(spark, path).collect())
    assert sorted(DeltaTable(path).to_pyarrow_table()["k"].to_pylist()) == found
    log = Log(path)
    log.refresh()
    assert log.rows == len(found)
    return found


LAST: dict[str, Callable[[str], Path]] = {
    "the newest commit": newest_commit,
    "its data file": lambda path: file_of(path, newest_commit(path)),
}


LIKELY = {("the newest commit", "empty"), ("its data file", "cut off")}


@pytest.mark.parametrize(
    ("what", "how", "checksums"),
    [
        *(
            pytest.param(what, how, False, marks=[] if (what, how) in LIKELY else [pytest.mark.soak])
            for what in LAST
            for how in DAMAGES
        ),
        ("the newest commit", "empty", True),
        pytest.param("the newest commit", "cut off", True, marks=pytest.mark.soak),
    ],
)
def test_a_newest_commit_that_was_not_on_the_disk_is_given_up_and_its_step_does_the_same_again(
    spark: SparkSession, lake: Lake, path: str, what: str, how: str, *, checksums: bool
) -> None:
    damage(LAST[what](path), how, hadoop_knows=checksums)
    if not checksums:
        damage(newest_commit(path).with_suffix(".crc"), "empty")
    as_in_a_new_process(spark)

    kept = list[Event]()
    with noting(EventLog("a test", lambda batch, _again: kept.extend(batch), print)):
        lake.ensure(SPEC)

    assert (numbers(spark, path), tables.version_of(spark, path)) == ([0, 1], 3)
    assert tables.transactions(spark, path) == {SOURCE: 2}
    (event,) = kept
    assert event.message.startswith(
        "silver.numbers: version 3 had not reached the disk when the machine stopped ("
    )
    assert event.message.endswith("); it is discarded, and its input is read again")
    append(spark, path, 2)
    assert (numbers(spark, path), tables.version_of(spark, path)) == ([0, 1, 2], 4)
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    assert sorted(row.k for row in changes.load(path).collect()) == [0, 1, 2]


def test_a_change_feed_that_was_not_on_the_disk_is_given_up_with_its_commit(
    spark: SparkSession, lake: Lake, path: str
) -> None:
    tables.delete(spark, path, F.col("k") == 1)
    damage(file_of(path, newest_commit(path), "cdc"), "empty")
    as_in_a_new_process(spark)
    lake.ensure(SPEC)
    assert (numbers(spark, path), tables.version_of(spark, path)) == ([0, 1, 2], 4)


def test_a_commit_is_given_up_in_a_table_that_keeps_times_in_its_commits(
    spark: SparkSession, lake: Lake, path: str
) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    append(spark, path, 3)
    damage(newest_commit(path), "empty")
    as_in_a_new_process(spark)
    lake.ensure(SPEC)
    append(spark, path, 3)
    assert (numbers(spark, path), tables.version_of(spark, path)) == ([0, 1, 2, 3], 6)
    assert len(spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()) == 7


def test_a_table_whose_creation_was_not_on_the_disk_is_created_again(spark: SparkSession, lake: Lake) -> None:
    path = lake.ensure(SPEC)
    damage(newest_commit(path), "empty")
    as_in_a_new_process(spark)
    assert lake.ensure(SPEC) == path
    append(spark, path, 0)
    assert numbers(spark, path) == [0]


@pytest.mark.parametrize(
    ("what", "how"),
    [("the newest commit", "empty"), pytest.param("its data file", "cut off", marks=pytest.mark.soak)],
)
def test_what_later_commits_build_on_is_refused_by_name_and_nothing_is_changed(
    spark: SparkSession, lake: Lake, path: str, what: str, how: str
) -> None:
    file = LAST[what](path)
    append(spark, path, 3)
    damage(file, how)
    as_in_a_new_process(spark)
    before = {one: one.read_bytes() for one in Path(path).rglob("*") if one.is_file()}

    for _ in range(2):
        with pytest.raises(TableError, match=r"^silver.numbers has lost data from version 3: ") as caught:
            lake.ensure(SPEC)
        assert f": {file} " in str(caught.value)
        assert "recreate the table" in str(caught.value)
    assert {one: one.read_bytes() for one in Path(path).rglob("*") if one.is_file()} == before


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("00000000000000000003.checkpoint.parquet", "empty"),
        pytest.param("00000000000000000003.checkpoint.parquet", "cut off", marks=pytest.mark.soak),
        pytest.param("_last_checkpoint", "empty", marks=pytest.mark.soak),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_removed_because_its_commits_are_there(
    spark: SparkSession, lake: Lake, path: str, name: str, how: str
) -> None:
    delta.write_checkpoint(delta.log_of(spark, path))
    damage(Path(path, "_delta_log", name), how)
    damage(newest_commit(path).with_suffix(".crc"), "empty")
    append(spark, path, 3)
    as_in_a_new_process(spark)
    lake.ensure(SPEC)
    assert numbers(spark, path) == [0, 1, 2, 3]
    assert not Path(path, "_delta_log", "_last_checkpoint").exists()


def test_a_log_that_begins_with_a_checkpoint_that_cannot_be_read_is_refused(
    spark: SparkSession, lake: Lake, path: str
) -> None:
    delta.write_checkpoint(delta.log_of(spark, path))
    append(spark, path, 3)
    pipeline.forget_commits(path, before=3)
    damage(Path(path, "_delta_log", "00000000000000000003.checkpoint.parquet"), "empty")
    as_in_a_new_process(spark)
    with pytest.raises(TableError, match=r"3\.checkpoint\.parquet is empty, as after a power failure"):
        lake.ensure(SPEC)


def test_files_that_have_left_the_table_may_be_damaged(spark: SparkSession, lake: Lake, path: str) -> None:
    gone = file_of(path, newest_commit(path))
    tables.delete(spark, path, F.col("k") == 2)
    damage(gone, "empty")
    as_in_a_new_process(spark)
    lake.ensure(SPEC)
    assert (numbers(spark, path), tables.version_of(spark, path)) == ([0, 1], 4)


def test_a_commit_returns_when_it_and_its_files_and_those_of_others_before_it_are_on_the_disk(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[Path]()

    def noting_sync(file: Path) -> None:
        synced.append(file)
        sync(file)

    monkeypatch.setattr(lasting, "sync", noting_sync)
    other = spark.newSession()
    other.range(7, 8).selectExpr("id AS k").write.format("delta").mode("append").save(path)  # by Delta itself
    append(spark, path, 3)

    commits = [Path(path, "_delta_log", f"{version:020}.json") for version in (4, 5)]
    files = [file_of(path, commit) for commit in commits]
    expected = [files[0], Path(path), commits[0], files[1], Path(path), commits[1], Path(path, "_delta_log")]
    assert synced == expected


def test_events_are_on_the_disk_and_a_batch_that_was_not_is_given_up(tmp_path: Path) -> None:
    table = tmp_path / "ops" / "events"
    for text in ("first", "second"):
        record(tmp_path, text)
    damage(newest_commit(table), "cut off")
    forget()
    record(tmp_path, "third")
    first, *others = [one.message for one in event_table.newest(str(tmp_path), limit=9)]
    assert (first, others.count("second"), others.count("third")) == ("first", 0, 1)


def record(lake: Path, text: str) -> None:
    with noting(EventLog("a test", partial(event_table.append, str(lake)), print)):
        note(Kind.START, text)


def test_what_is_given_up_is_an_entry_that_says_so(spark: SparkSession, lake: Lake, path: str) -> None:
    damage(newest_commit(path), "empty")
    as_in_a_new_process(spark)
    lake.ensure(SPEC)
    (action,) = map(json.loads, newest_commit(path).read_text().splitlines())
    assert action["commitInfo"]["operation"] == "GIVEN UP"
    assert tables.read_commit(spark, path, 3).is_given_up
    assert not tables.read_commit(spark, path, 2).is_given_up
