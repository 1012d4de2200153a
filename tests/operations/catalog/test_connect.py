"""A Spark Connect client queries by name: pyspark in a process of its own, without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.engine.layers import gold
from lakehouse.operations.catalog.metastore_names import Outcome, sync_names
from lakehouse.storage.tables import Lake
from tests.operations.catalog import servers
from tests.support.streams import USER_TRANSACTIONS_5M

pytestmark = pytest.mark.soak

ASKED = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
table = spark.table("gold.user_transactions_5m")
rows = [[row.user_id, str(row.total_amount), row["count"]] for row in table.orderBy("user_id").collect()]
comments = [one.description for one in spark.catalog.listColumns("gold.user_transactions_5m")]
print(json.dumps({"rows": rows, "comments": comments[:1]}))
"""


@pytest.fixture(scope="module")
def address(readable_lake: Lake, metastore: str, directory: Path) -> Iterator[str]:
    spec = gold.spec(USER_TRANSACTIONS_5M)
    assert [one.outcome for one in sync_names(readable_lake, [spec], metastore)] == [Outcome.NEW]
    with servers.connect_server(directory / "connect", metastore) as address:
        yield address


def test_a_client_without_a_jvm_reads_a_table_by_name(address: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK")}
    done = subprocess.run(
        [sys.executable, "-c", ASKED, address],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "rows": [["Zoë", "12345678901234567890.123456789", 2], ["it's me", "0.100000000", 1]],
        "comments": ["Part of the key by which amounts are grouped."],
    }
