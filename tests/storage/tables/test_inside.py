"""Logs that name files outside their table: every reader refuses them in the same words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import LongType, StructType

from lakehouse.common.errors import TableError
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.serving.reading import delta
from lakehouse.serving.reading.delta import TableAwayError
from lakehouse.storage.tables import TableSpec, direct
from lakehouse.storage.tables.entries import entry_of
from lakehouse.storage.tables.inside import leads_outside, refuse_outside

SPEC = TableSpec("ops", "events", StructType().add("a", LongType()), stats=())
SECRET = 666
INSIDE = (
    "part-00000-c000.snappy.parquet",
    "day=2026-03-01/part-0.parquet",
    "at=10%3A00/part-0.parquet",
    "x=a%253Ab/part-0.parquet",
    "x=100%25/part..0.parquet",
    "..part/...parquet",
    "_change_data/cdc-0.parquet",
    "漢%20字.parquet",
)
OUTSIDE = (
    "../outside.parquet",
    "../../outside.parquet",
    "x/../../../outside.parquet",
    "%2e%2e/%2E%2e/outside.parquet",
    "..%2F..%2Foutside.parquet",
    "%252e%252e%252foutside.parquet",
    "..\\..\\outside.parquet",
    "..",
    "/etc/outside.parquet",
    "%2Fetc/outside.parquet",
    "file:///etc/outside.parquet",
    "file:/etc/outside.parquet",
    "FILE:/etc/outside.parquet",
    "file%3A///etc/outside.parquet",
    "s3a://other/outside.parquet",
    "s3://other/outside.parquet",
    "hdfs://host/outside.parquet",
)


def test_which_paths_lead_out_of_a_table() -> None:
    assert [path for path in INSIDE if leads_outside(path)] == []
    assert [path for path in OUTSIDE if not leads_outside(path)] == []


@pytest.mark.parametrize(
    "action",
    [
        {"add": {"path": "../x", "size": 1}},
        {"remove": {"path": "../x"}},
        {"cdc": {"path": "../x", "size": 1}},
        {"sidecar": {"path": "../x"}},
        {
            "add": {
                "path": "x",
                "size": 1,
                "deletionVector": {"storageType": "p", "pathOrInlineDv": "s3://b/x"},
            }
        },
        {
            "remove": {
                "path": "x",
                "deletionVector": {"storageType": "u", "pathOrInlineDv": "../../ab^-aqEH.-t@S}K{vb[*k^"},
            }
        },
    ],
    ids=["add", "remove", "cdc", "sidecar", "an absolute vector", "a climbing vector"],
)
def test_every_action_that_names_a_file_is_looked_at(action: dict[str, Any]) -> None:
    text = json.dumps(action)
    with pytest.raises(TableError, match="version 7 of the table at /lake/silver/t names the file '"):
        entry_of(7, text, "/lake/silver/t")


def test_vectors_in_the_log_and_beside_their_table_are_inside() -> None:
    for kind, named in (("u", "ab^-aqEH.-t@S}K{vb[*k^"), ("u", "^-aqEH.-t@S}K{vb[*k^"), ("i", "/..:/wi5b=")):
        vector = {"storageType": kind, "pathOrInlineDv": named}
        refuse_outside("/lake/t", 0, [{"add": {"path": "x", "deletionVector": vector}}])


def test_the_error_is_one_line_whatever_the_path_has_in_it() -> None:
    with pytest.raises(TableError) as raised:
        refuse_outside("/lake/t", None, [{"add": {"path": f"../\x1b[2J\n{'y' * 500}"}}])
    assert str(raised.value).startswith(
        r"the log of the table at /lake/t names the file '../\x1b[2J\n" + "y" * 56 + "…', which lies outside"
    )
    assert len(str(raised.value).splitlines()) == 1


def put(lake: Path, path: str) -> Path:
    """Create a table whose second commit adds a file by this path, and a secret file beside the lake."""
    table = lake / "ops" / "events"
    write_deltalake(str(table), pa.table({"a": [1]}))
    secret = lake.parent / "outside.parquet"
    pq.write_table(pa.table({"a": [SECRET]}), secret)
    add = {"path": path, "size": secret.stat().st_size, "partitionValues": {}, "modificationTime": 1}
    commit = [{"commitInfo": {"timestamp": 1}}, {"add": {**add, "dataChange": True}}]
    file = table / "_delta_log" / f"{1:020}.json"
    file.write_text("".join(f"{json.dumps(action)}\n" for action in commit))
    return table


READERS: dict[str, Callable[[Path], object]] = {
    "serving": lambda lake: delta.Table(str(lake / "ops/events")).snapshot(),
    "telemetry": lambda lake: Log(str(lake / "ops/events")).refresh(),
    "dataset": lambda lake: direct.dataset(str(lake), SPEC),
    "newest first": lambda lake: next(direct.newest_first(str(lake), SPEC, "a")),
    "compaction": lambda lake: direct.compact(str(lake), SPEC),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("path", ["../../../outside.parquet", "%2e%2e/%2e%2e/%2e%2e/outside.parquet"])
def test_no_reader_without_a_jvm_opens_a_file_outside(tmp_path: Path, path: str, reader: str) -> None:
    table = put(tmp_path / "lake", path)
    said = f"version 1 of the table at {re.escape(str(table))} names the file '{re.escape(path)}', which lies"
    with pytest.raises((TableError, TableAwayError), match=said):
        READERS[reader](tmp_path / "lake")


def test_what_a_running_server_has_opened_is_looked_at_again_with_each_commit(tmp_path: Path) -> None:
    table = put(tmp_path / "lake", "../../../outside.parquet")
    commit = table / "_delta_log" / f"{1:020}.json"
    text = commit.read_text()
    commit.unlink()
    served, log = delta.Table(str(table)), Log(str(table))
    served.snapshot()
    log.refresh()
    served._looked = 0.0
    commit.write_text(text)
    with pytest.raises(TableAwayError, match="which lies outside the table"):
        served.snapshot()
    with pytest.raises(TableError, match="which lies outside the table"):
        log.refresh()
