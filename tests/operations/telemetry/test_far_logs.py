"""A log that is not on a disk: the same facts, with few looks, because each of them is a request.

It is in Arrow's in-memory file system.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.operations.telemetry.measures import unread_appends
from lakehouse.storage import files as lake_files
from lakehouse.storage.files import Found, arrow_directory
from lakehouse.storage.tables.specs import Position
from tests.support import log_lakes as lakes


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"mock://{tmp_path.name}/lake/bronze/table"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the files that are looked for."""
    found, find = list[str](), lake_files._Far.find

    def counted(files: lake_files._Far, name: str) -> Found | None:
        found.append(name.rpartition("/")[2])
        return find(files, name)

    monkeypatch.setattr(lake_files._Far, "find", counted)
    return found


def commit(path: str, version: int, rows: Sequence[int], table: str = "a table") -> None:
    system, root = arrow_directory(path)
    at = lakes.DAY.format(f"08:{version // 60:02}:{version % 60:02}")
    actions = [{"metaData": {"id": table, "configuration": {}}}, *lakes.added(rows, at)]
    system.create_dir(f"{root}/_delta_log")
    with system.open_output_stream(f"{root}/_delta_log/{version:020}.json") as file:
        file.write("\n".join(json.dumps(action) for action in actions).encode())


def test_a_look_at_what_has_not_changed_is_one(path: str, looks: list[str]) -> None:
    log = Log(path)
    assert not log.refresh()
    looks.clear()
    assert not log.refresh()
    assert looks == [f"{0:020}.json"]
    commit(path, 0, [3])
    assert log.refresh()
    looks.clear()
    assert log.refresh()
    assert looks == [f"{1:020}.json"]
    assert (log.version, log.rows) == (0, 3)


def test_a_new_commit_is_one_of_the_same_table(path: str, looks: list[str]) -> None:
    log = Log(path)
    commit(path, 0, [3])
    log.refresh()
    looks.clear()
    commit(path, 1, [4])
    log.refresh()
    assert looks == [f"{one:020}.json" for one in (1, 0, 2)]
    assert (log.version, log.rows) == (1, 7)


def test_a_table_that_was_recreated_and_has_passed_the_old_one_is_read_anew(path: str) -> None:
    log = Log(path)
    commit(path, 0, [3], "the old one")
    log.refresh()
    for version in range(3):
        commit(path, version, [10], "the new one")
    log.refresh()
    assert (log.table_id, log.version, log.rows) == ("the new one", 2, 30)


def test_a_table_that_was_recreated_and_is_shorter_is_found_after_a_while(path: str) -> None:
    log, soon = Log(path), Log(path, identified_every_s=0.0)
    commit(path, 0, [3], "the old one")
    log.refresh()
    soon.refresh()
    commit(path, 0, [10], "the new one")
    log.refresh()
    assert log.table_id == "the old one"
    soon.refresh()
    assert (soon.table_id, soon.rows) == ("the new one", 10)


def test_a_log_that_is_far_behind_is_listed(path: str, looks: list[str]) -> None:
    log = Log(path)
    commit(path, 0, [3])
    log.refresh()
    for version in range(1, 251):
        commit(path, version, [2])
    looks.clear()
    log.refresh()
    assert (log.version, log.rows) == (250, 503)
    assert len(looks) < 300
    assert unread_appends(log, Position(101)).rows == 300
    assert unread_appends(log, Position(0)).commits == 251
