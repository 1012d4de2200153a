"""PyHive queries a table in an object store through a Thrift server, whose key may only read there."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow.fs import FileSelector
from pydantic import SecretStr
from pyhive import hive
from pyhive.exc import OperationalError

from lakehouse.settings.s3_access import S3Access
from tests.operations.catalog import servers
from tests.operations.catalog.rows import TRANSACTIONS
from tests.support import seaweed
from tests.support.processes import LAKEHOUSE, QUICK_JVM

pytestmark = pytest.mark.soak

NAMES = ("user_id", "window_start", "window_end", "total_amount", "count")


@pytest.fixture(scope="module")
def store(directory: Path) -> Iterator[str]:
    """Yield a store with a table made by another client."""
    with seaweed.running(directory / "weed") as endpoint:
        access = S3Access(endpoint, "", seaweed.WRITER[0], SecretStr(seaweed.WRITER[1])).for_environment()
        rows = pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in TRANSACTIONS])
        place = f"s3://{seaweed.BUCKET}/names/gold/user_transactions_5m"
        write_deltalake(place, rows, storage_options=access)
        yield endpoint


@pytest.fixture(scope="module")
def cursor(store: str, metastore: str, directory: Path) -> Iterator[Any]:
    environment = {
        **os.environ,
        **QUICK_JVM,
        **seaweed.settings_of(store, "names"),
        "LAKEHOUSE_HOME": str(directory / "home"),
        "LAKEHOUSE_METASTORE": metastore,
        "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
    }
    done = subprocess.run(
        [LAKEHOUSE, "sync-names"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reader = S3Access(store, "", seaweed.READER[0], SecretStr(seaweed.READER[1])).for_hadoop()
    more = {f"spark.hadoop.{name}": value for name, value in reader.items()}
    with (
        servers.thrift_server(directory / "thrift", metastore, more=more) as port,
        closing(hive.connect(host="127.0.0.1", port=port, username="analyst")) as connection,
    ):
        yield connection.cursor()


def contents(endpoint: str) -> dict[str, str]:
    files = seaweed.files_of(endpoint)
    found = files.get_file_info(FileSelector(f"{seaweed.BUCKET}/names/gold", recursive=True))
    return {
        one.path: hashlib.sha256(files.open_input_file(one.path).read()).hexdigest()
        for one in found
        if one.is_file
    }


def test_a_table_in_an_object_store_is_read_by_name_and_cannot_be_changed(cursor: Any, store: str) -> None:
    before = contents(store)
    cursor.execute("SELECT user_id, total_amount FROM gold.user_transactions_5m")
    assert sorted(cursor.fetchall()) == sorted((row[0], row[3]) for row in TRANSACTIONS)

    for statement in ("DELETE FROM {} WHERE count = 1", "INSERT INTO {} SELECT * FROM {}"):
        with pytest.raises(OperationalError, match=r"AccessDenied|Access Denied|Forbidden|Status Code: 403"):
            cursor.execute(statement.replace("{}", "gold.user_transactions_5m"))

    assert len(before) > 1
    assert contents(store) == before
