"""Tables that the server keeps open."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakehouse.serving.reading.delta import NoTableError, Table


def rows(table: Table) -> list[dict[str, int]]:
    time.sleep(0.2)  # a table is checked ten times a second
    found: list[dict[str, int]] = table.snapshot().dataset.to_table().to_pylist()
    return found


def test_a_table_that_is_open_has_new_rows_and_those_of_another_table_at_its_path(tmp_path: Path) -> None:
    path = tmp_path / "table"
    table = Table(str(path))
    with pytest.raises(NoTableError):
        table.snapshot()
    write_deltalake(path, pa.table({"n": [1]}))
    assert rows(table) == [{"n": 1}]
    write_deltalake(path, pa.table({"n": [2]}), mode="append")
    assert sorted(one["n"] for one in rows(table)) == [1, 2]
    shutil.rmtree(path)
    for n in (3, 4):
        write_deltalake(path, pa.table({"n": [n]}), mode="append")
    assert sorted(one["n"] for one in rows(table)) == [3, 4]
    shutil.rmtree(path)
    with pytest.raises(NoTableError):
        rows(table)
