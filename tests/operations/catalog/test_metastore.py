"""Names in a real metastore: created, left as they are, changed, moved, and owned by others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hmsclient import HMSClient
from hmsclient.genthrift.hive_metastore.ttypes import FieldSchema, SerDeInfo, StorageDescriptor, Table

from lakehouse.common.errors import ServiceError
from lakehouse.engine.layers import gold
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.catalog.metastore_names import Outcome, registering, specs, sync_names
from lakehouse.storage.tables import Lake
from tests.operations.catalog.rows import TRANSACTIONS
from tests.support.pipeline import await_
from tests.support.processes import LAKEHOUSE, QUICK_JVM, ROOT
from tests.support.streams import METRICS_1M, PRODUCT_SALES, STREAMS, USER_TRANSACTIONS_5M
from tests.support.streams import TRANSACTIONS as STREAM

pytestmark = pytest.mark.soak

SPEC = gold.spec(USER_TRANSACTIONS_5M)
NAME = "gold.user_transactions_5m"
AWAY = (
    "the metastore at thrift://127.0.0.1:1 does not answer: Connection refused; check metastore "
    "(LAKEHOUSE_METASTORE)"
)


def client(uri: str) -> Any:
    host, _, port = uri.removeprefix("thrift://").partition(":")
    return HMSClient(host=host, port=int(port))


def only(lake: Lake, uri: str, *wanted: Any, moves: bool = False) -> list[tuple[str, Outcome, str]]:
    done = sync_names(lake, wanted or [SPEC], uri, moves=moves)
    return [(one.table, one.outcome, one.about) for one in done]


@pytest.fixture(scope="module")
def registered(readable_lake: Lake, metastore: str) -> tuple[Lake, str]:
    assert only(readable_lake, metastore) == [(NAME, Outcome.NEW, "")]
    return readable_lake, metastore


def test_a_rerun_changes_nothing(registered: tuple[Lake, str]) -> None:
    lake, uri = registered
    with client(uri) as asked:
        before = asked.get_table("gold", "user_transactions_5m")
        assert only(lake, uri) == [(NAME, Outcome.UNCHANGED, "")]
        assert asked.get_table("gold", "user_transactions_5m") == before


def test_the_entry_says_where_the_table_lies_and_what_it_is(registered: tuple[Lake, str]) -> None:
    lake, uri = registered
    with client(uri) as asked:
        found = asked.get_table("gold", "user_transactions_5m")

    assert found.tableType == "EXTERNAL_TABLE"
    assert found.sd.serdeInfo.parameters["path"] == f"file://{lake.root}/gold/user_transactions_5m"
    assert found.parameters["comment"].startswith("One row per user and five minutes of event time")
    assert found.parameters["lakehouse.registered"] == "true"
    schema = found.parameters["spark.sql.sources.schema.part.0"]
    assert '"Part of the key by which amounts are grouped."' in schema


def test_deltalake_finds_a_table_by_its_name_alone(registered: tuple[Lake, str]) -> None:
    from deltalake import DeltaTable  # noqa: PLC0415 - as a client would, without this project

    _, uri = registered
    with client(uri) as asked:
        path = asked.get_table("gold", "user_transactions_5m").sd.serdeInfo.parameters["path"]

    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == sorted(TRANSACTIONS)


def test_a_table_that_gets_a_column_or_another_comment_is_changed(registered: tuple[Lake, str]) -> None:
    lake, uri = registered
    path = lake.path("gold", "user_transactions_5m")
    lake.spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note string COMMENT 'By hand.' FIRST)")
    assert only(lake, uri) == [(NAME, Outcome.CHANGED, "columns")]
    other = replace(SPEC, comment="In other words.")
    assert only(lake, uri, other) == [(NAME, Outcome.CHANGED, "comment")]
    assert only(lake, uri) == [(NAME, Outcome.CHANGED, "comment")]
    assert only(lake, uri) == [(NAME, Outcome.UNCHANGED, "")]


def test_a_lake_elsewhere_takes_a_name_only_if_that_is_asked_for(
    registered: tuple[Lake, str], tmp_path: Path
) -> None:
    lake, uri = registered
    moved = replace(lake, root=str(tmp_path / "moved"))
    moved.ensure(SPEC)

    ((_, outcome, about),) = only(moved, uri)
    assert outcome is Outcome.REFUSED
    assert f"is registered at file://{lake.root}/gold/user_transactions_5m" in about
    assert only(lake, uri) == [(NAME, Outcome.UNCHANGED, "")]
    assert only(moved, uri, moves=True) == [(NAME, Outcome.CHANGED, "location, columns")]
    assert only(lake, uri, moves=True) == [(NAME, Outcome.CHANGED, "location, columns")]


def test_a_name_of_others_is_left_alone_and_the_rest_goes_on(registered: tuple[Lake, str]) -> None:
    lake, uri = registered
    lake.ensure(gold.spec(PRODUCT_SALES))
    lake.ensure(DEAD_LETTERS)
    column = FieldSchema(name="a", type="string", comment="")
    stored = StorageDescriptor(
        cols=[column], location=f"file://{lake.root}/elsewhere", serdeInfo=SerDeInfo(parameters={})
    )
    theirs = Table(
        dbName="gold", tableName="product_sales", tableType="EXTERNAL_TABLE", sd=stored, parameters={}
    )
    with client(uri) as asked:
        asked.create_table(theirs)
        before = asked.get_table("gold", "product_sales")

        done = only(
            lake, uri, gold.spec(PRODUCT_SALES), DEAD_LETTERS, gold.spec(METRICS_1M), SPEC, moves=True
        )

        assert [(table, outcome) for table, outcome, _ in done] == [
            ("gold.product_sales", Outcome.REFUSED),
            ("silver.dead_letters", Outcome.NEW),
            ("gold.metrics_1m", Outcome.NOT_MADE),
            (NAME, Outcome.UNCHANGED),
        ]
        assert asked.get_table("gold", "product_sales") == before
        asked.drop_table("gold", "product_sales", deleteData=False)


def test_a_live_run_registers_tables_as_they_appear_and_says_a_trouble_once(
    readable_lake: Lake, metastore: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse.operations.catalog.metastore_names._EVERY_S", 0.2)
    lake, said = replace(readable_lake, root=str(tmp_path)), list[str]()
    with registering(
        lake,
        [replace(STREAM, name="t", gold=(replace(USER_TRANSACTIONS_5M, name="later"),))],
        metastore,
        said.append,
    ):
        assert said == []
        lake.ensure(replace(SPEC, name="later"))
        await_(lambda: len(said) == 1)
    assert said == ["gold.later is registered in the metastore: new"]

    away = list[str]()
    with registering(lake, STREAMS, "thrift://127.0.0.1:1", away.append):
        await_(lambda: len(away) == 1)
    assert away == [f"names in the metastore are not up to date: {AWAY}"]


def test_a_metastore_that_is_silent_is_given_up_after_a_while(readable_lake: Lake) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"thrift://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServiceError, match="does not answer: Read timed out; check metastore "):
            only(readable_lake, uri)


def test_the_command_says_what_became_of_each_table(
    readable_lake: Lake, metastore: str, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        **QUICK_JVM,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        "LAKEHOUSE_HOME": str(tmp_path / "home"),
        "LAKEHOUSE_LAKE": readable_lake.root,
        "LAKEHOUSE_METASTORE": metastore,
        "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
    }

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, LAKEHOUSE, "sync-names", "--ops"]
        return subprocess.run(
            command, env=environment | more, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    done = run()
    assert done.returncode == 0, done.stderr
    cells = [
        [cell.strip() for cell in line.split("│")[1:4]] for line in done.stdout.splitlines() if "│" in line
    ]
    assert [NAME, "unchanged", ""] in cells
    assert ["ops.gates", "not in the lake yet", ""] in cells
    assert len(cells) == len(specs(STREAMS, ops=True))

    away = run(LAKEHOUSE_METASTORE="thrift://127.0.0.1:1")
    assert away.returncode == 1
    assert away.stderr.splitlines()[-1] == f"error: {AWAY}"
