"""The newest version of a table, and what other processes have committed in the meantime."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake, Move, TableSpec, log
from tests.support import pipeline

SPEC = TableSpec("silver", "numbers", StructType([StructField("n", LongType())]), stats=("n",))


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    """Create a table with the numbers 0, 1 and 2, each in a version of its own after the first."""
    location = Lake(spark, str(tmp_path)).ensure(SPEC)
    for number in range(3):
        moves = [Move("here", number or None, number + 1)]
        tables.append(local_frame(spark, [(number,)], SPEC.schema), location, moves)
    return location


def commit_elsewhere(path: str, number: int) -> None:
    """Add a version as another process would, with the rows of the newest one again but no checksum.

    Delta's own log object does not know about it.
    """
    old, new = (Path(path, "_delta_log", f"{version:020}") for version in (number - 1, number))
    actions = [json.loads(line) for line in old.with_suffix(".json").read_text().splitlines()]
    for action in actions:
        if "add" in action:
            copied = f"copy-{number}-{action['add']['path']}"
            shutil.copy(Path(path, action["add"]["path"]), Path(path, copied))
            action["add"]["path"] = copied
        if "txn" in action:
            action["txn"] |= {"appId": "elsewhere", "version": number}
    draft = Path(path, "_delta_log", f".{number}.draft")
    draft.write_text("\n".join(map(json.dumps, actions)))
    draft.rename(new.with_suffix(".json"))


def checksum_elsewhere(path: str, number: int) -> None:
    """Add the checksum of such a version."""
    old, new = (Path(path, "_delta_log", f"{version:020}.crc") for version in (number - 1, number))
    noted = json.loads(old.read_text())
    commit = Path(path, "_delta_log", f"{number:020}.json").read_text().splitlines()
    added = [action["add"] for action in map(json.loads, commit) if "add" in action]
    noted["allFiles"] += added
    noted["numFiles"] += len(added)
    noted["tableSizeBytes"] += sum(one["size"] for one in added)
    noted["setTransactions"] = [
        {"appId": "elsewhere", "version": number, "lastUpdated": int(time.time() * 1000)}
    ]
    new.write_text(json.dumps(noted))


def numbers(spark: SparkSession, path: str) -> list[int]:
    return sorted(row.n for row in tables.read(spark, path).collect())


@pytest.mark.parametrize("with_checksum", [True, False])
def test_commits_of_other_processes_are_found(spark: SparkSession, path: str, *, with_checksum: bool) -> None:
    assert (tables.version_of(spark, path), numbers(spark, path)) == (3, [0, 1, 2])

    for version in (4, 5):
        commit_elsewhere(path, version)
        if with_checksum:
            checksum_elsewhere(path, version)

    assert (tables.version_of(spark, path), numbers(spark, path)) == (5, [0, 1, 2, 2, 2])
    assert tables.transactions(spark, path)["elsewhere"] == 5
    tables.append(local_frame(spark, [(7,)], SPEC.schema), path, [Move("elsewhere", 5, 6)])
    assert (tables.version_of(spark, path), numbers(spark, path)) == (6, [0, 1, 2, 2, 2, 7])


def test_they_are_found_without_a_look_at_the_rest_of_the_log(spark: SparkSession, path: str) -> None:
    """By then, the log has a gap, which would make Delta fail if it listed the log."""
    assert tables.version_of(spark, path) == 3
    commit_elsewhere(path, 4)
    checksum_elsewhere(path, 4)
    pipeline.forget_commits(path, before=2)

    assert tables.version_of(spark, path) == 4
    assert tables.transactions(spark, path)["elsewhere"] == 4


def test_the_log_is_listed_now_and_then_so_that_a_checkpoint_is_found(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_INTERVAL", 5)  # the checkpoint is counted as version -1
    assert tables.version_of(spark, path) == 3
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    commit_elsewhere(path, 5)

    found = tables.snapshot(spark, path)

    assert int(found.version()) == 5
    assert int(found.logSegment().checkpointProvider().version()) == 4
