"""All four streams through all layers on an S3 store, with a run that is killed again and again."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import duckdb
import pytest
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem, copy_files

from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings
from tests.chaos.checks import audit_differences, differences
from tests.chaos.files import TABLES
from tests.chaos.load import Feeder
from tests.support import s3_proxy as proxy
from tests.support.processes import LAKEHOUSE, Place, finish, place, running
from tests.support.seaweed import BUCKET, files_of, options_of, settings_of

PREFIX = "streams"
GOLD = [table for table in TABLES if table.startswith("gold.")]
DATABASE = 11
KILLS = 5
RATE = 40
SHAPE = {"calls": {"gap": "3s", "grace": "5s"}, "sales": {"threshold": 100}}
CLOSED_S = 10  # how long after its last event a call is over


@pytest.fixture(scope="module")
def there(services: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("there") / "home", services, DATABASE) as found:
        yield found


@pytest.fixture(scope="module")
def killed(there: Place, store: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a lake filled by a run that was killed after commits of random steps.

    It dies when the store has a commit but the run has not been told.
    """
    directory, rng = tmp_path_factory.mktemp("runs"), Random(39)
    shape = {"LAKEHOUSE_STREAMS": json.dumps(SHAPE)}
    with proxy.before(store) as between:
        environment = there.environment | shape | settings_of(between.endpoint, PREFIX)
        environment |= {"LAKEHOUSE_RUN_REFUSED_LIMIT": "1"}  # a tenth of the records is malformed
        with Feeder(there.settings({"streams": SHAPE}), rate=RATE, seed=39, poison=0.1) as feeder:
            for life in range(KILLS):
                left = rng.randrange(5, 40)
                command = [LAKEHOUSE, "run", "all", "--trigger", "1 second"]
                with running(command, environment, directory / f"life{life}") as run:

                    def loses(request: proxy.Request, pid: int = run.pid) -> bool:
                        nonlocal left
                        is_commit = request.method == "PUT" and "/_delta_log/" in request.path
                        left -= is_commit and request.is_conditional and request.status == 200
                        if left == 0:
                            os.killpg(pid, signal.SIGKILL)
                        return left <= 0

                    between.loses = loses
                    assert run.wait(600) == -signal.SIGKILL, run.errors
            between.loses = lambda _request: False
            feeder.stop()
        assert feeder.given > 500
        for _ in range(2):
            ended = finish([LAKEHOUSE, "run", "all", "--trigger", "available-now"], environment)
            assert ended.returncode == 0, ended.stderr
            time.sleep(CLOSED_S)
    return environment | settings_of(store, PREFIX)


@pytest.fixture(scope="module")
def here(
    there: Place, killed: dict[str, str], store: str, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Return the settings of a copy of that lake on this machine, for the oracles."""
    assert killed["LAKEHOUSE_LAKE"].endswith(PREFIX)
    lake = tmp_path_factory.mktemp("here") / "lake"
    copy_files(
        f"{BUCKET}/{PREFIX}",
        str(lake),
        source_filesystem=files_of(store),
        destination_filesystem=LocalFileSystem(),
    )
    return there.settings({"streams": SHAPE, "lake": str(lake)})


@pytest.mark.soak
def test_every_table_topic_and_redis_row_is_the_oracles(here: Settings) -> None:
    books, found = differences(here)
    assert found == []
    assert books.sent == books.clean + books.dead
    assert books.dead > 50


@pytest.mark.soak
def test_the_audit_of_the_lake_in_the_store_finds_nothing(killed: dict[str, str], tmp_path: Path) -> None:
    assert audit_differences(killed, tmp_path / "audit") == []


@pytest.mark.soak
def test_deltalake_and_duckdb_read_every_gold_table(killed: dict[str, str], store: str) -> None:
    assert killed
    with duckdb.connect() as connection:
        for table in GOLD:
            rows = opened(store, table).to_pyarrow_dataset(filesystem=below(store, table))
            connection.from_arrow(rows).create_view("found", replace=True)
            ((count,),) = connection.execute("SELECT count(*) FROM found").fetchall()
            assert count == rows.count_rows()
            assert count > 0, table


def opened(store: str, table: str) -> DeltaTable:
    return DeltaTable(f"s3://{BUCKET}/{PREFIX}/{table.replace('.', '/')}", storage_options=options_of(store))


def below(store: str, table: str) -> SubTreeFileSystem:
    return SubTreeFileSystem(f"{BUCKET}/{PREFIX}/{table.replace('.', '/')}", files_of(store))
