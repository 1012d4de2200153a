"""What waits in a table, in pieces that fit into a micro-batch; real Delta tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.progress import backlogs, snapshots
from lakehouse.progress.backlogs import Backlog
from tests import pipeline

ENDLESS = 1 << 40


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    """A table with a change feed; a version for each of the numbers 0, 1 and 2, in two files each."""
    location = str(tmp_path)
    for number in range(3):
        append(spark, location, number)
    return location


def append(spark: SparkSession, path: str, number: int, *, files: int = 2) -> None:
    rows = spark.range(0, files, 1, files).selectExpr(f"{number} AS n", "id")
    writer = rows.write.format("delta").option("delta.enableChangeDataFeed", "true")
    writer.mode("append").save(path)


def numbers_of(spark: SparkSession, path: str, piece: Backlog | None) -> list[int]:
    assert piece is not None
    appended = snapshots.appended_of(spark, path, piece.files)
    found = sorted(row.n for row in appended.rows.collect())
    assert appended.count == len(found)
    return found


def test_versions_that_fit_are_read_together(spark: SparkSession, path: str) -> None:
    everything = backlogs.appends(spark, path, 0, 3, max_bytes=ENDLESS)
    assert everything is not None
    size = sum(int(file["size"]) for file in everything.files)

    two = backlogs.appends(spark, path, 0, 3, max_bytes=size - 1)
    rest = backlogs.appends(spark, path, 2, 3, max_bytes=size - 1)

    assert numbers_of(spark, path, everything) == [0, 0, 1, 1, 2, 2]
    assert numbers_of(spark, path, two) == [0, 0, 1, 1]
    assert numbers_of(spark, path, rest) == [2, 2]
    assert [(one.first, one.end) for one in (everything, two, rest) if one] == [(0, 3), (0, 2), (2, 3)]


def test_a_version_that_is_too_large_is_read_by_itself_if_it_has_one_file(
    spark: SparkSession, path: str
) -> None:
    append(spark, path, 3, files=1)
    append(spark, path, 4, files=1)

    assert numbers_of(spark, path, backlogs.appends(spark, path, 3, 5, max_bytes=1)) == [3]
    assert backlogs.appends(spark, path, 0, 5, max_bytes=1) is None  # two files: one at a time is better


def test_what_others_have_changed_is_skipped(spark: SparkSession, path: str) -> None:
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n = 0 AND id = 0")
    spark.sql(f"OPTIMIZE delta.`{path}`")
    append(spark, path, 5, files=1)

    assert backlogs.appends(spark, path, 3, 5, max_bytes=ENDLESS) == Backlog(3, 5, ())
    assert numbers_of(spark, path, backlogs.appends(spark, path, 3, 6, max_bytes=ENDLESS)) == [5]


def test_changes_are_read_in_few_versions(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FEW_VERSIONS", 4)
    append(spark, path, 3, files=1)
    append(spark, path, 4, files=1)
    spark.sql(f"UPDATE delta.`{path}` SET n = 9 WHERE n = 4")

    some = backlogs.changes(spark, path, 1, 6, max_bytes=ENDLESS)
    last = backlogs.changes(spark, path, 5, 6, max_bytes=ENDLESS)

    assert some is not None
    assert (some.first, some.end, len(some.files)) == (1, 5, 6)
    assert last is not None
    assert (last.end, ["_change_data" in str(file["path"]) for file in last.files]) == (6, [True])


def test_a_commit_that_has_left_the_log_is_reported(spark: SparkSession, path: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    append(spark, path, 4, files=1)
    pipeline.forget_commits(path, before=2)

    with pytest.raises(TableError, match=r"was read up to version 1, and its log begins at version"):
        backlogs.appends(spark, path, 1, tables.version_of(spark, path), max_bytes=ENDLESS)
