"""Tables that several jobs create at once, or whose creation was killed."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse.common.errors import TableError
from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, Move, TableSpec, commits
from tests.support.counting import counted

SPEC = TableSpec(
    "silver", "numbers", StructType([StructField("n", LongType())]), ("n",), pinned_settings={"grace_s": "5"}
)


def test_a_table_is_made_without_a_job_and_so_is_its_first_micro_batch_noted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Checksums list a table's files from the first version on, so no log is replayed to find them."""
    with counted(spark) as making:
        path = Lake(spark, str(tmp_path)).ensure(SPEC)
    with counted(spark) as noting:
        tables.note(spark, path, [Move("app", None, 1)])

    assert (making.jobs, noting.jobs) == (0, 0)
    checksums = sorted(Path(path, "_delta_log").glob("0*.crc"))
    assert [json.loads(file.read_text())["allFiles"] for file in checksums] == [[], []]


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
    path = Lake(spark, str(tmp_path)).ensure(SPEC)

    assert tables.exists(spark, path)
    made = DeltaTable(path)
    assert made.version() == 0
    assert made.metadata().configuration["lakehouse.grace_s"] == "5"


@pytest.mark.parametrize(
    ("name", "is_of_no_table"),
    [
        ("_delta_log/notes.txt", False),
        ("_delta_log/\N{EXTENDED ARABIC-INDIC DIGIT ZERO}.json", False),  # from a log under a Persian locale
        ("numbers.csv", True),
    ],
)
def test_a_place_with_something_else_in_it_is_left_alone_and_the_way_out_is_named_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_of_no_table: bool
) -> None:
    table = tmp_path / "silver" / "numbers"
    found = table / name
    found.parent.mkdir(parents=True)
    found.write_text("mine")
    own, sleep = threading.get_ident(), time.sleep

    def sleep_elsewhere(seconds: float) -> None:  # py4j's threads may sleep
        assert threading.get_ident() != own, "it waits"
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleep_elsewhere)

    said = f"silver.numbers could not be created.* at {table}: {name} exists"
    with pytest.raises(TableError, match=said) as caught:
        Lake(spark, str(tmp_path)).ensure(SPEC)
    assert ("remove it" in str(caught.value)) == is_of_no_table

    assert found.read_text() == "mine"


def test_a_table_that_somebody_has_made_since_one_looked_is_left_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = Lake(spark, str(tmp_path)).ensure(SPEC)

    commits.create(spark, path, SPEC.schema, {})

    table = DeltaTable(path)
    assert table.version() == 0
    assert table.metadata().configuration["lakehouse.grace_s"] == "5"


def test_a_table_that_several_create_at_once_is_created_once(spark: SparkSession, tmp_path: Path) -> None:
    jobs = 8
    with ThreadPoolExecutor(jobs) as pool:
        sessions = [spark.newSession() for _ in range(jobs)]
        paths = set(pool.map(lambda session: Lake(session, str(tmp_path)).ensure(SPEC), sessions))

    assert len(paths) == 1
    table = DeltaTable(paths.pop())
    assert table.version() == 0
    assert [field.name for field in table.schema().fields] == ["n"]


def test_times_are_kept_as_other_readers_know_them_beside_older_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    spec = TableSpec("gold", "moments", StructType().add("at", "timestamp"), ("at",))
    path = Lake(spark, str(tmp_path)).ensure(spec)
    texts = ("1066-10-14T09:00:00Z", "2026-05-04T12:00:00.123456Z", "9998-12-31T23:59:59Z")
    kind = "spark.sql.parquet.outputTimestampType"
    kinds = (str(spark.conf.get(kind)), "INT96")
    for number, written_as in enumerate(kinds):
        spark.conf.set(kind, written_as)
        try:
            moments = spark.range(1).selectExpr(f"timestamp'{texts[number]}' AS at")
            tables.append(moments, path)
        finally:
            spark.conf.set(kind, kinds[0])
    tables.append(spark.range(1).selectExpr(f"timestamp'{texts[2]}' AS at"), path)

    rows = tables.read(spark, path).selectExpr("unix_micros(at) AS micros").collect()
    assert sorted(row.micros for row in rows) == sorted(map(micros_of, texts))
    files = [pq.read_metadata(file) for file in Path(path).glob("*.parquet")]
    types = [file.row_group(0).column(0).physical_type for file in files if file.num_rows]
    assert sorted(types) == ["INT64", "INT64", "INT96"]
    read = DeltaTable(path).to_pyarrow_table()["at"].to_pylist()
    assert sorted(read) == sorted(map(datetime.fromisoformat, texts))


def micros_of(text: str) -> int:
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
