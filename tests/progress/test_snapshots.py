"""A cut has exactly the rows that the streaming query has been given, whatever files a micro-batch was of."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.progress import snapshots
from lakehouse.progress.snapshots import Position
from lakehouse.settings import Settings
from lakehouse.tables import Lake
from tests import pipeline
from tests.fuzz import commands

QUERY = "gold.something"


@pytest.fixture
def path(lake: Lake) -> str:
    """A table of the coordinates of records, three files a commit."""
    location = lake.path("silver", "something")
    append(lake.spark, location, 0)
    append(lake.spark, location, 10)
    return location


def append(spark: SparkSession, path: str, first: int) -> None:
    rows = spark.range(first, first + 10).selectExpr(
        "'t' AS topic", "0 AS partition", "id AS offset", "0 AS changed"
    )
    rows.repartition(3).write.format("delta").mode("append").save(path)


def stream(lake: Lake, path: str, files: int = 1000) -> dict[int, set[int]]:
    """Catch up with the table, so many files a micro-batch, and return what each micro-batch was given."""
    given: dict[int, set[int]] = {}

    def take(batch: DataFrame, number: int) -> None:
        given[number] = {row.offset for row in batch.collect()}

    reader = lake.spark.readStream.format("delta").option("skipChangeCommits", "true")
    rows = reader.option("maxFilesPerTrigger", files).load(path)
    writer = rows.writeStream.option("checkpointLocation", lake.checkpoint(QUERY)).foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination()
    return given


def position(lake: Lake, path: str, batch: int) -> Position:
    return snapshots.positions(lake, QUERY, batch)[tables.table_id(lake.spark, path)]


def offsets_of(rows: DataFrame) -> list[int]:
    return sorted(row.offset for row in rows.collect())


def test_a_cut_is_what_the_micro_batches_up_to_one_have_been_given(
    spark: SparkSession, lake: Lake, path: str
) -> None:
    given = stream(lake, path, files=2)  # begins with the table as it stands
    append(spark, path, 20)
    append(spark, path, 30)
    given |= stream(lake, path, files=2)
    append(spark, path, 40)
    given |= stream(lake, path)

    places = [position(lake, path, batch) for batch in sorted(given)]
    assert any(place.is_starting for place in places)
    assert any(place.index >= 0 and not place.is_starting for place in places)  # in the middle of a commit
    seen: set[int] = set()
    for batch, place in zip(sorted(given), places, strict=True):
        seen |= given[batch]
        assert offsets_of(snapshots.read_up_to(spark, path, place)) == sorted(seen)
    assert seen == set(range(50))
    assert snapshots.finished(lake, QUERY) == max(given)
    assert offsets_of(snapshots.read_up_to(spark, path, None)) == []


def test_commits_that_rewrite_rows_count_as_read_and_appends_behind_them_do_not(
    spark: SparkSession, lake: Lake, path: str
) -> None:
    given = stream(lake, path)
    append(spark, path, 20)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE offset IN (5, 25)")
    spark.sql(f"UPDATE delta.`{path}` SET changed = 1 WHERE offset = 7")
    append(spark, path, 30)
    place = position(lake, path, max(given))

    rows = {row.offset: row.changed for row in snapshots.read_up_to(spark, path, place).collect()}

    assert sorted(rows) == [offset for offset in range(20) if offset != 5]
    assert [offset for offset, changed in rows.items() if changed] == [7]
    newest = tables.version_of(spark, path)
    assert snapshots.has_unread(spark, path, place, newest + 1)
    assert not snapshots.has_unread(spark, path, place, place.version)
    given = stream(lake, path)
    assert set().union(*given.values()) == set(range(20, 40))  # the stream passes over what was rewritten
    place = position(lake, path, max(given))
    assert not snapshots.has_unread(spark, path, place, newest + 1)
    assert offsets_of(snapshots.read_up_to(spark, path, place)) == offsets_of(tables.read(spark, path))


def test_compaction_brings_no_rows_that_a_reader_has_not_read(
    spark: SparkSession, lake: Lake, path: str
) -> None:
    given = stream(lake, path)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    place = position(lake, path, max(given))
    assert not snapshots.has_unread(spark, path, place, tables.version_of(spark, path) + 1)

    append(spark, path, 20)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE offset IN (5, 25)")

    assert offsets_of(snapshots.read_up_to(spark, path, place)) == [n for n in range(20) if n != 5]
    assert snapshots.has_unread(spark, path, place, tables.version_of(spark, path) + 1)
    given = stream(lake, path)
    assert set().union(*given.values()) == set(range(20, 30))
    for number, place in ((n, position(lake, path, n)) for n in given):
        assert offsets_of(snapshots.read_up_to(spark, path, place)) == [
            n for n in range(30) if n not in (5, 25)
        ], number


def test_a_cut_stays_when_vacuum_has_removed_what_compaction_replaced(
    lake: Lake, lake_settings: Settings, path: str
) -> None:
    spark = lake.spark
    given = stream(lake, path)
    place = position(lake, path, max(given))
    version = tables.version_of(spark, path)

    commands.optimize(spark, lake_settings, "silver.something")
    commands.vacuum(spark, lake_settings, "silver.something", everything=True)

    assert offsets_of(snapshots.read_up_to(spark, path, place)) == list(range(20))
    same = snapshots.with_same_rows(spark, path, version)
    assert same == tables.version_of(spark, path) > version
    assert offsets_of(tables.read_version(spark, path, same)) == list(range(20))
    append(spark, path, 20)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE offset = 5")
    assert snapshots.with_same_rows(spark, path, version) == same
    assert snapshots.with_same_rows(spark, path, same + 1) == same + 1


def test_what_log_retention_has_removed_counts_as_unread_and_is_named_where_it_is_needed(
    spark: SparkSession, path: str
) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    append(spark, path, 20)
    newest = tables.version_of(spark, path)
    pipeline.forget_commits(path, before=newest)
    early, late = Position(1, 2, is_starting=False), Position(newest, 2, is_starting=False)

    assert snapshots.has_unread(spark, path, None, newest + 1)
    assert snapshots.has_unread(spark, path, early, newest + 1)
    assert not snapshots.has_unread(spark, path, late, newest + 1)
    assert offsets_of(snapshots.read_up_to(spark, path, late)) == list(range(30))
    for needs in (snapshots.read_up_to, snapshots.version_read):
        with pytest.raises(TableError, match=f"up to version 1, and its log begins at version {newest}"):
            needs(spark, path, early)


def test_the_change_feed_has_been_read_up_to_a_version_once_all_its_files_have(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "kept")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (topic STRING, partition INT, offset LONG, changed INT) USING delta "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    append(spark, path, 0)
    spark.sql(f"UPDATE delta.`{path}` SET changed = 1 WHERE offset = 7")

    assert snapshots.version_read(spark, path, None) is None
    assert snapshots.version_read(spark, path, Position(1, 1, is_starting=True)) is None
    assert snapshots.version_read(spark, path, Position(1, 2, is_starting=True)) == 1
    assert snapshots.version_read(spark, path, Position(2, -1, is_starting=False)) == 1
    assert snapshots.version_read(spark, path, Position(2, 0, is_starting=False)) == 2  # one file of changes
    assert snapshots.version_read(spark, path, Position(1, 1, is_starting=False)) == 0  # two of three files
