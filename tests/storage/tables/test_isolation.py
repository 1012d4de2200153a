"""Appends that have read nothing conflict with commits that have read a merged table, but no other table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Move, TableSpec
from lakehouse.storage.tables.log import properties

APPENDED = TableSpec("silver", "numbers", StructType().add("n", "long"), stats=("n",))
MERGED = replace(APPENDED, layer="gold", is_merged=True)


def reads_and_deletes(lake: Lake, path: str) -> tables.Commit:
    """Return a commit that has read the whole table and is about to remove its files."""
    commit = tables.begin(lake.spark, path)
    near = commit.candidates(None)
    commit.remove(near, near.files)
    return commit


@pytest.mark.parametrize("spec", [APPENDED, MERGED], ids=["appended", "merged"])
def test_an_append_conflicts_with_a_commit_that_has_read_a_merged_table(lake: Lake, spec: TableSpec) -> None:
    path, one = lake.ensure(spec), lake.spark.sql("SELECT 1L AS n")
    tables.append(one, path)
    commit = reads_and_deletes(lake, path)
    tables.append(lake.spark.sql("SELECT 2L AS n"), path, [Move("query", None, 1)])

    if spec.is_merged:
        with pytest.raises(ConcurrentAppendException):
            commit.finish()
    else:
        commit.finish()

    left = sorted(row.n for row in tables.read(lake.spark, path).collect())
    assert left == ([1, 2] if spec.is_merged else [2])


def test_two_commits_that_have_both_read_an_appended_table_conflict(lake: Lake) -> None:
    """Each would insert the same number, which the table lacks."""
    path, seven = lake.ensure(APPENDED), lake.spark.sql("SELECT 7L AS n")
    first, second = (tables.begin(lake.spark, path) for _ in range(2))
    for commit in (first, second):
        assert commit.rows(commit.candidates(F.col("n") == 7)).isEmpty()
        commit.write(seven)
    first.finish()

    with pytest.raises(ConcurrentAppendException):
        second.finish()


def test_a_table_of_an_earlier_version_gets_its_isolation_from_its_writer(lake: Lake) -> None:
    path = lake.ensure(APPENDED)
    lake.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.isolationLevel' = 'Serializable')")
    lake.ensure_source(APPENDED)
    assert properties(lake.spark, path)["delta.isolationLevel"] == "Serializable"

    lake.ensure(APPENDED)

    assert properties(lake.spark, path)["delta.isolationLevel"] == "WriteSerializable"
    version = tables.version_of(lake.spark, path)
    lake.ensure(APPENDED)
    assert tables.version_of(lake.spark, path) == version
