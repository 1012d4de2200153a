"""PyHive queries by name through Spark's Thrift server, whose user may read the lake but not write to it.

The server itself checks no rights: running as the lake's owner, it deletes rows for anyone who can reach it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyhive import hive
from pyhive.exc import OperationalError
from TCLIService.ttypes import TFetchOrientation, TFetchResultsReq, TGetColumnsReq

from lakehouse.engine.layers import gold
from lakehouse.operations.catalog.metastore_names import Outcome, sync_names
from lakehouse.storage.tables import Lake
from tests.operations.catalog import servers
from tests.operations.catalog.rows import NOON, TRANSACTIONS
from tests.support.streams import USER_TRANSACTIONS_5M

pytestmark = pytest.mark.soak
SPEC = gold.spec(USER_TRANSACTIONS_5M)


@pytest.fixture(scope="module")
def port(readable_lake: Lake, metastore: str, directory: Path) -> Iterator[int]:
    assert os.geteuid() == 0, "only root may start a server as another user: run these tests as root"
    assert shutil.which("setpriv"), "setpriv starts the server as nobody: install util-linux"
    assert [one.outcome for one in sync_names(readable_lake, [SPEC], metastore)] == [Outcome.NEW]
    with servers.thrift_server(directory / "thrift", metastore, as_nobody=True) as port:
        yield port


@pytest.fixture
def cursor(port: int) -> Iterator[Any]:
    with closing(hive.connect(host="127.0.0.1", port=port, username="analyst")) as connection:
        yield connection.cursor()


def rows(cursor: Any, statement: str) -> list[tuple[Any, ...]]:
    cursor.execute(statement)
    found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def contents(lake: Lake) -> dict[str, str]:
    """Return every file of the lake, with a hash of its contents."""
    files = (path for path in Path(lake.root).rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_tables_are_listed_and_read_by_name(cursor: Any) -> None:
    assert rows(cursor, "SHOW TABLES IN gold") == [("gold", "user_transactions_5m", False)]
    found = rows(cursor, "SELECT user_id, total_amount, count FROM gold.user_transactions_5m")
    assert sorted(found) == sorted((user, total, count) for user, _, _, total, count in TRANSACTIONS)
    at = f"{NOON:%F %T}"
    (total,) = rows(cursor, f"SELECT sum(count) FROM gold.user_transactions_5m WHERE window_start = '{at}'")
    assert total == (3,)


def test_columns_are_told_with_their_comments(cursor: Any) -> None:
    described = rows(cursor, "DESCRIBE gold.user_transactions_5m")
    assert described[0] == ("user_id", "string", "Part of the key by which amounts are grouped.")
    assert described[3][:2] == ("total_amount", "decimal(38,9)")


def test_a_tool_that_asks_for_the_columns_of_a_table_gets_them(port: int) -> None:
    """BI tools use JDBC's getColumns to fill their lists."""
    with closing(hive.connect(host="127.0.0.1", port=port, username="analyst")) as connection:
        asked = connection.client.GetColumns(
            TGetColumnsReq(connection.sessionHandle, schemaName="gold", tableName="user_transactions_5m")
        )
        wanted = TFetchResultsReq(asked.operationHandle, TFetchOrientation.FETCH_NEXT, 100)
        columns = connection.client.FetchResults(wanted).results.columns
    names, remarks = columns[3].stringVal.values, columns[11].stringVal.values
    assert names == ["user_id", "window_start", "window_end", "total_amount", "count"]
    assert remarks[4] == "Number of amounts, at least one."


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM gold.user_transactions_5m WHERE count = 1",
        "UPDATE gold.user_transactions_5m SET count = 0",
        "INSERT INTO gold.user_transactions_5m SELECT * FROM gold.user_transactions_5m",
        "OPTIMIZE gold.user_transactions_5m",
        "VACUUM gold.user_transactions_5m RETAIN 1000 HOURS",
        "ALTER TABLE gold.user_transactions_5m ADD COLUMNS (note string)",
    ],
)
def test_what_changes_a_table_fails_and_leaves_its_files_as_they_were(
    cursor: Any, readable_lake: Lake, statement: str
) -> None:
    before = contents(readable_lake)
    with pytest.raises(OperationalError, match=r"Permission denied|Failed to (open|create)|Mkdirs failed"):
        rows(cursor, statement)
    assert contents(readable_lake) == before


def test_a_name_can_be_dropped_and_comes_back_with_the_next_run(
    cursor: Any, readable_lake: Lake, metastore: str
) -> None:
    before = contents(readable_lake)
    rows_before = rows(cursor, "SELECT count(*) FROM gold.user_transactions_5m")
    cursor.execute("DROP TABLE gold.user_transactions_5m")
    assert contents(readable_lake) == before

    assert [one.outcome for one in sync_names(readable_lake, [SPEC], metastore)] == [Outcome.NEW]
    assert rows(cursor, "SELECT count(*) FROM gold.user_transactions_5m") == rows_before == [(2,)]
