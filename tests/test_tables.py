"""Tables that several jobs create at the same moment, and that one was killed creating."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse import tables
from lakehouse.errors import TableError
from lakehouse.tables import TableSpec, commits

SPEC = TableSpec(
    "silver", "numbers", StructType([StructField("n", LongType())]), ("n",), fixed={"grace_s": "5"}
)


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(["_staged_commits/"], id="before a commit"),
        pytest.param(
            [
                ".00000000000000000000.json.5c6f.tmp",
                "..00000000000000000000.json.5c6f.tmp.crc",
                "_staged_commits/",
            ],
            id="in the middle of one",
        ),
        pytest.param([], id="at the very first"),
    ],
)
def test_a_table_whose_creation_was_killed_before_its_commit_is_created(
    spark: SparkSession, tmp_path: Path, left: list[str]
) -> None:
    table = tmp_path / "silver" / "numbers"
    log = table / "_delta_log"
    log.mkdir(parents=True)
    for name in left:
        if name.endswith("/"):
            (log / name).mkdir()
        else:
            (log / name).write_bytes(b"{")

    assert not tables.exists(spark, str(table))
    path = tables.ensure(spark, str(tmp_path), SPEC)

    assert tables.exists(spark, path)
    made = DeltaTable(path)
    assert made.version() == 0
    assert made.metadata().configuration["lakehouse.grace_s"] == "5"


def test_a_log_with_something_else_in_it_is_left_alone_and_the_way_out_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "silver" / "numbers"
    found = table / "_delta_log" / "notes.txt"
    found.parent.mkdir(parents=True)
    found.write_text("mine")

    with pytest.raises(TableError, match=f"silver.numbers could not be created.* at {table}: .* remove it"):
        tables.ensure(spark, str(tmp_path), SPEC)

    assert found.read_text() == "mine"


def test_a_table_that_somebody_has_made_since_one_looked_is_left_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tables.ensure(spark, str(tmp_path), SPEC)

    commits.create(spark, path, SPEC.schema, {})

    table = DeltaTable(path)
    assert table.version() == 0
    assert table.metadata().configuration["lakehouse.grace_s"] == "5"


def test_a_table_that_several_create_at_once_is_created_once(spark: SparkSession, tmp_path: Path) -> None:
    jobs = 8
    with ThreadPoolExecutor(jobs) as pool:
        sessions = [spark.newSession() for _ in range(jobs)]
        paths = set(pool.map(lambda session: tables.ensure(session, str(tmp_path), SPEC), sessions))

    assert len(paths) == 1
    table = DeltaTable(paths.pop())
    assert table.version() == 0
    assert [field.name for field in table.schema().fields] == ["n"]
