"""A log followed without a JVM: on a disk, each look detects a new commit and another table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.common.errors import TableError
from lakehouse.storage.tables.watched_log import WatchedLog


def commit(table: Path, version: int, text: str) -> None:
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    written = log / "written"
    written.write_text(text, encoding="utf-8")
    written.replace(log / f"{version:020}.json")


def test_a_log_has_a_next_version_once_its_commit_is_there(tmp_path: Path) -> None:
    log = WatchedLog(str(tmp_path))
    assert (log.version, log.has_next(), log.is_recreated()) == (-1, False, False)
    commit(tmp_path, 0, '{"txn":{"appId":"a","version":4}}\n')
    assert log.has_next()
    read = log.read(0)
    assert read is not None
    assert read[0].actions == ({"txn": {"appId": "a", "version": 4}},)
    log.reach(0, read[1])
    assert (log.version, log.has_next(), log.is_recreated()) == (0, False, False)


def test_a_table_whose_newest_commit_is_another_file_was_recreated(tmp_path: Path) -> None:
    log = WatchedLog(str(tmp_path))
    commit(tmp_path, 0, "{}")
    log.reach(0, log.stamp(0))
    assert not log.is_recreated()
    commit(tmp_path, 0, "{}")
    assert log.is_recreated()
    log.forget()
    assert (log.version, log.is_recreated()) == (-1, False)


def test_an_incomplete_commit_is_none_and_one_of_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    log = WatchedLog(str(tmp_path))
    commit(tmp_path, 0, '{"add":{"pa')
    assert log.read(0) is None
    commit(tmp_path, 1, '{"add":{"path":"../other/a.parquet","size":1}}')
    with pytest.raises(TableError):
        log.read(1)


def test_the_newest_whole_checkpoint_is_the_one_to_begin_at(tmp_path: Path) -> None:
    log = WatchedLog(str(tmp_path))
    names = [f"{5:020}.checkpoint.{part:010}.{2:010}.parquet" for part in (1, 2)]
    assert log.checkpoint([f"{5:020}.json", names[0]]) is None
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{7:020}.checkpoint.parquet").write_bytes(b"PAR1")  # truncated
    assert log.checkpoint([f"{7:020}.checkpoint.parquet"]) is None
    pq.write_table(pa.table({"a": [1]}), tmp_path / "_delta_log" / f"{6:020}.checkpoint.parquet")
    names = [f"{version:020}.checkpoint.parquet" for version in (6, 7)]
    assert log.checkpoint(names) == (6, [names[0]])
    assert log.checkpoint(names, upto=5) is None
