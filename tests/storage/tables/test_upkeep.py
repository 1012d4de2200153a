"""VACUUM removes files that nobody reads any more, and is skipped if there are none. Also, file sizes."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.storage.tables.upkeep import bytes_of_rows, vacuum
from tests.support.counting import counted

HOUR = timedelta(hours=1)


def age(file: Path, old: timedelta = 2 * HOUR) -> None:
    """Make a file two hours old, or as old as given."""
    moment = time.time() - old.total_seconds()
    os.utime(file, (moment, moment))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Path:
    """Create a table whose only row has been replaced once."""
    path = tmp_path / "table"
    for number in range(2):
        frame = spark.range(number, number + 1).coalesce(1)
        frame.write.format("delta").mode("overwrite").save(str(path))
    return path


def files_of(spark: SparkSession, table: Path) -> set[Path]:
    """Return the files of the newest version."""
    names = {Path(name).name for name in spark.read.format("delta").load(str(table)).inputFiles()}
    return {table / name for name in names}


def test_there_is_no_vacuum_where_every_file_is_young(spark: SparkSession, table: Path) -> None:
    with counted(spark) as counts:
        assert vacuum(spark, str(table), HOUR, dry_run=False) == 0

    assert counts.jobs == 0
    assert len(list(table.glob("*.parquet"))) == 2


def test_there_is_no_vacuum_where_every_old_file_is_the_newest_versions(
    spark: SparkSession, table: Path
) -> None:
    for file in files_of(spark, table):
        age(file)

    with counted(spark) as counts:
        assert vacuum(spark, str(table), HOUR, dry_run=False) == 0

    assert counts.jobs == 0


@pytest.mark.soak
@pytest.mark.parametrize("place", [".", "_change_data", "part"])
def test_an_old_file_that_no_version_has_is_removed(spark: SparkSession, table: Path, place: str) -> None:
    left = table / place / "part-00000-left-behind.snappy.parquet"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"")
    age(left)

    assert vacuum(spark, str(table), HOUR, dry_run=True) == 1
    assert left.exists()
    assert vacuum(spark, str(table), HOUR, dry_run=False) == 1

    assert not left.exists()
    assert len(list(table.glob("*.parquet"))) == 2
    assert vacuum(spark, str(table), HOUR, dry_run=False) == 0


def test_a_file_stays_for_as_long_as_it_is_kept_even_if_that_is_more_than_deltas_week(
    spark: SparkSession, table: Path
) -> None:
    ages = {"kept": timedelta(days=10), "gone": timedelta(days=40)}
    for name, days in ages.items():
        (table / f"part-00000-{name}.snappy.parquet").write_bytes(b"")
        age(table / f"part-00000-{name}.snappy.parquet", days)

    assert vacuum(spark, str(table), timedelta(days=30), dry_run=True) == 1
    assert vacuum(spark, str(table), timedelta(days=30), dry_run=False) == 1

    assert (table / "part-00000-kept.snappy.parquet").exists()
    assert not (table / "part-00000-gone.snappy.parquet").exists()


def test_the_bytes_of_some_rows_are_their_share_of_the_table_and_a_mebibyte_at_least(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    rows = spark.range(0, 40_000, 1, 2).selectExpr("sha2(cast(id AS string), 256) AS text")
    rows.write.format("delta").save(path)
    size = sum(file.stat().st_size for file in Path(path).glob("*.parquet"))

    assert bytes_of_rows(spark, path, 30_000) == size * 3 // 4 > 1 << 20
    assert bytes_of_rows(spark, path, 100) == 1 << 20
    spark.sql(f"DELETE FROM delta.`{path}`")
    assert bytes_of_rows(spark, path, 30_000) == 1 << 20
