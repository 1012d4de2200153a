"""A metastore for the tests of a file, and a lake that this machine's other users can read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.engine.layers import gold
from lakehouse.storage import tables
from lakehouse.storage.spark.collecting import local_frame
from lakehouse.storage.tables import Lake
from tests.operations.catalog import servers
from tests.operations.catalog.rows import TRANSACTIONS
from tests.support.streams import USER_TRANSACTIONS_5M


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Yield a directory that every user can read; those of tmp_path are private to their owner."""
    with tempfile.TemporaryDirectory(prefix="names-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def metastore(directory: Path) -> Iterator[str]:
    with servers.metastore(directory / "metastore") as uri:
        yield uri


@pytest.fixture(scope="module")
def readable_lake(spark: SparkSession, directory: Path) -> Lake:
    """Return a lake with two rows in gold.user_transactions_5m; others may read it but not write to it."""
    lake = Lake(spark, str(directory / "it's a lake"))
    spec = gold.spec(USER_TRANSACTIONS_5M)
    tables.append(local_frame(spark, TRANSACTIONS, spec.schema), lake.ensure(spec))
    return lake
