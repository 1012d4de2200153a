"""Checkpoints of a table's log, written beside its commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse import tables
from lakehouse.tables import Lake, TableSpec, Transaction, log
from lakehouse.tables.log_checkpoints import Checkpointer
from tests import pipeline
from tests.frames import local_frame

SPEC = TableSpec("silver", "numbers", StructType([StructField("n", LongType())]), stats=("n",))


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table at version 1 whose log Delta gives a checkpoint every two commits, the block every three."""
    monkeypatch.setattr(log, "CHECKPOINT_INTERVAL", 3)
    location = Lake(spark, str(tmp_path)).ensure(SPEC)
    set_interval(spark, location, 2)
    assert tables.version_of(spark, location) == 1
    return location


def set_interval(spark: SparkSession, path: str, commits: int) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '{commits}')")


def append(spark: SparkSession, path: str, *numbers: int) -> None:
    for number in numbers:
        tables.append(local_frame(spark, [(number,)], SPEC.schema), path, Transaction("here", number))


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no checkpoint begin during the block."""
    go_on, write = threading.Event(), Checkpointer._write

    def waiting(*given: Any) -> None:
        assert go_on.wait(60)
        write(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "_write", waiting)
        try:
            yield
        finally:
            go_on.set()


def test_commits_do_not_wait_for_a_checkpoint(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tables.written_beside(spark, pytest.fail):
        with held(monkeypatch):
            append(spark, path, 2, 3, 4)
            assert (tables.version_of(spark, path), pipeline.log_checkpoints(path)) == (4, [])
        pipeline.await_(lambda: pipeline.log_checkpoints(path))

    assert pipeline.log_checkpoints(path) == [4]  # of the newest version by then
    assert log.checkpointed(tables.snapshot(spark, path).logSegment()) == 4
    assert sorted(DeltaTable(path).to_pyarrow_table()["n"].to_pylist()) == [2, 3, 4]


def test_a_checkpoint_that_a_log_lacks_is_made_up_for(spark: SparkSession, path: str) -> None:
    set_interval(spark, path, 100)
    append(spark, path, 3, 4, 5, 6)  # with nobody who would write one
    assert pipeline.log_checkpoints(path) == []

    with tables.written_beside(spark, pytest.fail):
        append(spark, path, 7)
        pipeline.await_(lambda: pipeline.log_checkpoints(path))
        append(spark, path, 8, 9)
        assert pipeline.log_checkpoints(path) == [7]
        append(spark, path, 10)
        pipeline.await_(lambda: pipeline.log_checkpoints(path) == [7, 10])

    assert sorted(DeltaTable(path).to_pyarrow_table()["n"].to_pylist()) == [3, 4, 5, 6, 7, 8, 9, 10]


def test_after_the_block_delta_writes_them_again(spark: SparkSession, path: str) -> None:
    with tables.written_beside(spark, pytest.fail), tables.written_beside(spark, pytest.fail):
        append(spark, path, 2)
    found = pipeline.log_checkpoints(path)
    append(spark, path, 3, 4)

    assert pipeline.log_checkpoints(path) == [*found, 4]


def test_a_checkpoint_that_fails_is_told_and_commits_go_on(spark: SparkSession, path: str) -> None:
    in_the_way = Path(path, "_delta_log", "_last_checkpoint", "in the way")
    in_the_way.mkdir(parents=True)
    notices = list[str]()
    with tables.written_beside(spark, notices.append):
        append(spark, path, 2)
        pipeline.await_(lambda: notices, 60)
        append(spark, path, 3)

    assert tables.version_of(spark, path) == 3
    assert [one.partition(": ")[0] for one in notices] == [path]
    assert "its log got no checkpoint: " in notices[0]
