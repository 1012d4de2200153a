"""A cut has exactly the rows that a reader has read up to a position, whatever happened to their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.common.errors import TableError
from lakehouse.engine.progress import cuts, parts
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Position
from tests.support import delta_commands as commands
from tests.support import pipeline

ENDLESS = 1 << 40


@pytest.fixture
def path(lake: Lake) -> str:
    """Return a table of record coordinates with three files per commit; version 0 has the first ten."""
    location = lake.path("silver", "something")
    append(lake.spark, location, 0)
    append(lake.spark, location, 10)
    return location


def append(spark: SparkSession, path: str, first: int) -> None:
    rows = spark.range(first, first + 10).selectExpr(
        "'t' AS topic", "0 AS partition", "id AS offset", "0 AS changed"
    )
    rows.repartition(3).write.format("delta").mode("append").save(path)


def offsets_of(rows: DataFrame) -> list[int]:
    return sorted(row.offset for row in rows.collect())


def test_a_cut_is_what_a_reader_has_been_given_part_by_part(spark: SparkSession, path: str) -> None:
    position = Position(1, 0)  # starts with the table's rows at that version
    seen, places = list[int](), list[Position]()
    append(spark, path, 20)
    append(spark, path, 30)

    assert offsets_of(cuts.read_up_to(spark, path, None)) == []
    while position.version <= 3:
        part = parts.appends(spark, path, position, 4, max_bytes=1)
        seen += offsets_of(part.frame(spark, path))
        places.append(position := part.end)
        assert offsets_of(cuts.read_up_to(spark, path, position)) == sorted(seen)

    assert sorted(seen) == list(range(40))
    assert places[:2] == [Position(1, 1), Position(1, 2)]
    assert places[-3:] == [Position(2), Position(3), Position(4)]


def test_a_table_is_read_in_the_order_of_landing_wherever_its_records_lie(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two records landed each second; the files have the offsets (2, 5, 1), (4, 7, 0) and (3, 6)."""
    path, position = str(tmp_path / "landed"), Position(0, 0)
    landed = "'t' AS topic", "0 AS partition", "id AS offset", "timestamp_seconds(id DIV 2) AS ingested_at"
    rows = spark.range(8).selectExpr(*landed).coalesce(1)
    rows = rows.sortWithinPartitions(F.expr("-(offset % 3)"), "offset")
    rows.write.format("delta").option("maxRecordsPerFile", 3).save(path)

    found, seen = list[list[int]](), list[int]()
    while position.version < 1:
        part = parts.appends(spark, path, position, 1, max_bytes=1)
        assert part.divisible_bytes == 0
        found.append(offsets_of(part.frame(spark, path)))
        assert offsets_of(parts.between(spark, path, position, part.end).frame(spark, path)) == found[-1]
        assert offsets_of(cuts.read_up_to(spark, path, position)) == sorted(seen)
        seen += found[-1]
        position = part.end

    assert found == [[0, 1], [2, 3, 4, 5, 6, 7]]


@pytest.mark.soak
def test_commits_that_rewrite_rows_count_as_read_and_appends_behind_them_do_not(
    spark: SparkSession, path: str
) -> None:
    append(spark, path, 20)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE offset IN (5, 25)")
    spark.sql(f"UPDATE delta.`{path}` SET changed = 1 WHERE offset = 7")
    append(spark, path, 30)
    place = Position(2)

    rows = {row.offset: row.changed for row in cuts.read_up_to(spark, path, place).collect()}

    assert sorted(rows) == [offset for offset in range(20) if offset != 5]
    assert [offset for offset, changed in rows.items() if changed] == [7]
    newest = tables.version_of(spark, path)
    assert cuts.has_unread(spark, path, place, newest + 1)
    assert not cuts.has_unread(spark, path, place, 2)
    part = parts.appends(spark, path, place, newest + 1, max_bytes=ENDLESS)
    assert offsets_of(part.frame(spark, path)) == list(range(20, 40))  # rewritten rows are skipped
    assert not cuts.has_unread(spark, path, part.end, newest + 1)
    assert offsets_of(cuts.read_up_to(spark, path, part.end)) == offsets_of(tables.read(spark, path))


@pytest.mark.soak
def test_compaction_brings_no_rows_that_a_reader_has_not_read(spark: SparkSession, path: str) -> None:
    spark.sql(f"OPTIMIZE delta.`{path}`")
    assert not cuts.has_unread(spark, path, Position(2), tables.version_of(spark, path) + 1)

    append(spark, path, 20)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE offset IN (5, 25)")

    assert offsets_of(cuts.read_up_to(spark, path, Position(2))) == [n for n in range(20) if n != 5]
    assert cuts.has_unread(spark, path, Position(2), tables.version_of(spark, path) + 1)
    assert offsets_of(cuts.read_up_to(spark, path, Position(1, 2))) != offsets_of(tables.read(spark, path))


@pytest.mark.soak
def test_a_cut_stays_when_vacuum_has_removed_what_compaction_replaced(
    lake: Lake, lake_settings: Settings, path: str
) -> None:
    spark = lake.spark
    version = tables.version_of(spark, path)

    commands.optimize(spark, lake_settings, "silver.something")
    commands.vacuum(spark, lake_settings, "silver.something", everything=True)

    assert offsets_of(cuts.read_up_to(spark, path, Position(version + 1))) == list(range(20))
    same = cuts.with_same_rows(spark, path, version)
    assert same == tables.version_of(spark, path) > version
    assert offsets_of(tables.read_version(spark, path, same)) == list(range(20))
    append(spark, path, 20)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE offset = 5")
    assert cuts.with_same_rows(spark, path, version) == same
    assert cuts.with_same_rows(spark, path, same + 1) == same + 1


@pytest.mark.soak
def test_what_log_retention_has_removed_counts_as_unread_and_is_named_where_it_is_needed(
    spark: SparkSession, path: str
) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    append(spark, path, 20)
    newest = tables.version_of(spark, path)
    pipeline.forget_commits(path, before=newest)
    early, late = Position(1), Position(newest + 1)

    assert cuts.has_unread(spark, path, None, newest + 1)
    assert cuts.has_unread(spark, path, early, newest + 1)
    assert not cuts.has_unread(spark, path, late, newest + 1)
    assert offsets_of(cuts.read_up_to(spark, path, late)) == list(range(30))
    with pytest.raises(TableError, match=f"up to version 1, but its log begins at version {newest}"):
        cuts.read_up_to(spark, path, early)


def test_the_change_feed_is_read_in_parts_of_whole_versions(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "kept")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (topic STRING, partition INT, offset LONG, changed INT) USING delta "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    append(spark, path, 0)
    spark.sql(f"UPDATE delta.`{path}` SET changed = 1 WHERE offset = 7")

    every = parts.changes(spark, path, Position(0), 3, max_bytes=ENDLESS)
    small = [parts.changes(spark, path, Position(first), 3, max_bytes=1) for first in range(3)]

    assert (every.end, len(every.files)) == (Position(3), 4)  # three from the append, one with changes
    # Version 0 only creates the table, so the next version is in the same part.
    assert [(one.end, len(one.files)) for one in small] == [
        (Position(2), 3),
        (Position(2), 3),
        (Position(3), 1),
    ]
