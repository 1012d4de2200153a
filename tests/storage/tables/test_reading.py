"""Rows of a table, as of a version or incrementally, whatever has happened to the table before or since."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse.engine.layers.change_reading import ChangeReading
from lakehouse.engine.layers.export_position import Begun
from lakehouse.engine.progress import parts
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake, Position, Progress, TableSpec, log, reading
from tests.support import pipeline

SPEC = TableSpec(
    "silver", "numbers", StructType([StructField("n", LongType())]), change_feed=True, stats=("n",)
)
Since = Callable[[SparkSession, str, Position | None], tuple[list[int], Position]]


def appended(spark: SparkSession, path: str, *versions: int) -> None:
    """Append two rows per version: 0 and 1, 2 and 3, and so on."""
    for version in versions:
        rows = local_frame(spark, [(2 * version,), (2 * version + 1,)], SPEC.schema).coalesce(1)
        tables.append(rows, path)


def appends_since(spark: SparkSession, path: str, position: Position | None) -> tuple[list[int], Position]:
    """Return what a reader of appends gets until it has caught up, and its position then."""
    at, found = position or parts.beginning(spark, path), list[int]()
    while at.is_beginning or at.version <= tables.version_of(spark, path):
        part = parts.appends(spark, path, at, tables.version_of(spark, path) + 1, max_bytes=1)
        found += [row.n for row in part.frame(spark, path).collect()] if part.files else []
        at = part.end
    return sorted(found), at


def changes_since(spark: SparkSession, path: str, position: Position | None) -> tuple[list[int], Position]:
    """Return what a reader of the change feed gets, and its position then."""
    reading, found = ChangeReading(spark, "test", "silver.test", path, ()), list[int]()
    progress = None if position is None else Progress(reading.sent_as, position)
    reading.begin(Begun(progress, None, {}))
    while (part := reading.next(max_bytes=1)) is not None:
        changes = reading.batch(part).rows.collect()
        assert {row["_change_type"] for row in changes} == {"insert"}
        found += [row.n for row in changes]
        reading.advance(part.end)
    assert reading.position is not None
    return sorted(found), reading.position


@pytest.mark.parametrize("since", [appends_since, changes_since])
@pytest.mark.parametrize(
    ("happened", "rows"),
    [
        pytest.param("", [0, 1, 2, 3], id="nothing", marks=pytest.mark.soak),
        pytest.param("UPDATE {} SET n = 9 WHERE n = 1", [0, 2, 3, 9], id="an update"),
        pytest.param("OPTIMIZE {}", [0, 1, 2, 3], id="compaction", marks=pytest.mark.soak),
        pytest.param(
            "ALTER TABLE {} ADD COLUMN word string", [0, 1, 2, 3], id="another schema", marks=pytest.mark.soak
        ),
    ],
)
def test_a_reader_begins_with_the_rows_as_of_now_and_goes_on_with_what_is_appended(
    spark: SparkSession, tmp_path: Path, since: Since, happened: str, rows: list[int]
) -> None:
    path = Lake(spark, str(tmp_path)).ensure(SPEC)
    appended(spark, path, 0, 1)
    if happened:
        spark.sql(happened.format(f"delta.`{path}`"))

    first, position = since(spark, path, None)
    nothing, position = since(spark, path, position)
    appended(spark, path, 2)
    then, _ = since(spark, path, position)

    assert (first, nothing, then) == (rows, [], [4, 5])


@pytest.mark.parametrize("since", [appends_since, changes_since])
def test_a_reader_of_a_table_whose_first_commits_are_gone_begins_with_its_rows(
    spark: SparkSession, tmp_path: Path, since: Since
) -> None:
    path = Lake(spark, str(tmp_path)).ensure(SPEC)
    appended(spark, path, 0, 1)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    appended(spark, path, 2)
    pipeline.forget_commits(path, before=3)

    assert since(spark, path, None)[0] == [0, 1, 2, 3, 4, 5]


def test_changes_of_a_table_whose_first_commits_are_gone_begin_where_it_can_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A commit is left, but nothing tells which rows came before it."""
    path = Lake(spark, str(tmp_path)).ensure(SPEC)
    appended(spark, path, 0, 1)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '4')")
    appended(spark, path, 2, 3)
    assert tables.first_version(spark, path) == 0
    pipeline.forget_commits(path, before=2)

    changes = tables.read_changes_since(spark, path, pipeline.utc("2020-01-01T00:00:00"))

    assert tables.first_version(spark, path) == 4
    assert sorted((row.n, row["_commit_version"]) for row in changes.collect()) == [
        (4, 4),
        (5, 4),
        (6, 5),
        (7, 5),
    ]


@pytest.mark.soak
@pytest.mark.parametrize("is_small", [True, False])
def test_rows_read_are_those_of_a_version_whatever_is_written_later(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    if not is_small:
        monkeypatch.setattr(reading, "FEW_FILES", 0)
    path = Lake(spark, str(tmp_path)).ensure(SPEC)
    appended(spark, path, 0, 1)
    before = tables.read(spark, path)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n = 1")
    after = tables.read(spark, path)
    appended(spark, path, 2)

    frames = (tables.read_version(spark, path, 0), before, after, tables.read(spark, path))
    assert [sorted(row.n for row in frame.collect()) for frame in frames] == [
        [],
        [0, 1, 2, 3],
        [0, 2, 3],
        [0, 2, 3, 4, 5],
    ]
    assert before.where("n > 1").groupBy("n").count().count() == 2


@pytest.mark.parametrize(
    "happened",
    [
        pytest.param((), id="appends"),
        pytest.param(("UPDATE {} SET n = 9 WHERE n = 1", "DELETE FROM {} WHERE n = 2"), id="changes"),
        pytest.param(("DELETE FROM {} WHERE n < 2",), id="whole files that leave"),
        pytest.param(
            ("OPTIMIZE {}", "ALTER TABLE {} SET TBLPROPERTIES ('a' = 'b')"),
            id="no change",
            marks=pytest.mark.soak,
        ),
        pytest.param(("ALTER TABLE {} ADD COLUMN word string",), id="another schema", marks=pytest.mark.soak),
    ],
)
def test_changes_between_versions_are_those_that_delta_reads(
    spark: SparkSession, tmp_path: Path, happened: Sequence[str]
) -> None:
    path = Lake(spark, str(tmp_path / "a lake [1] {ö}")).ensure(SPEC)
    appended(spark, path, 0, 1)
    for statement in happened:
        spark.sql(statement.format(f"delta.`{path}`"))
    newest = tables.version_of(spark, path)
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("endingVersion", newest)

    for first in range(1, newest + 1):
        changes = tables.read_changes(spark, path, first, newest)
        expected = reader.option("startingVersion", first).load(path)
        assert changes.schema.names == expected.schema.names
        assert sorted(map(str, changes.collect())) == sorted(map(str, expected.collect()))


def test_a_table_made_anew_at_the_path_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    """It has as many versions as the old one."""
    lake = Lake(spark, str(tmp_path))
    path = lake.ensure(SPEC)
    appended(spark, path, 0)
    before = tables.table_id(spark, path)
    shutil.rmtree(path)
    time.sleep(0.01)  # file times may have only milliseconds
    lake.ensure(SPEC)
    write_deltalake(path, pa.table({"n": pa.array([7], pa.int64())}), mode="append")

    assert tables.table_id(spark, path) != before
    assert [row.n for row in tables.read(spark, path).collect()] == [7]


@pytest.mark.soak
def test_a_snapshot_does_not_gather_commits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of the log is noticed, although nothing else makes Delta look."""
    path = Lake(spark, str(tmp_path)).ensure(SPEC)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    monkeypatch.setattr(log, "CHECKPOINT_INTERVAL", 3)
    for number in range(8):
        appended(spark, path, number)
        assert tables.snapshot(spark, path).logSegment().deltas().size() <= 3
