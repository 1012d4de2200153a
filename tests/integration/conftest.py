"""One lake of every stream, filled over a real broker and exported to a real Redis, for a worker's tests."""

from __future__ import annotations

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings
from tests.support import redis_databases
from tests.support.journey import Journey
from tests.support.settings import settings_for

LAKE_DATABASE = 1  # of Redis: rows of other lakes have the same names
LAKE_TIMEOUT_S = 1800  # whose test comes first waits until the lake is there; minutes on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Give the tests of the lake the time that it takes to fill."""
    for item in items:
        if "journey" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(LAKE_TIMEOUT_S))


@pytest.fixture(scope="session")
def journey(
    spark: SparkSession,
    session_settings: Settings,
    services: Endpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Journey:
    """A lake of every stream that has been through reruns and crashes; see tests/support/journey.py."""
    settings = settings_for(session_settings, services, tmp_path_factory.mktemp("filled")).changed(
        {
            "redis.url": SecretStr(redis_databases.url_of(services.redis, LAKE_DATABASE)),
            "streams": {
                "calls": {"gap": "1s", "grace": "1s"},
                "metrics": {"quantile_k": 10},
                "sales": {"threshold": 100},
            },
        }
    )
    made = Journey(spark, settings)
    made.travel()
    return made


@pytest.fixture(scope="session")
def filled_lake(journey: Journey) -> Settings:
    """A lake of every stream, caught up twice, with calls closed; a test that changes a table restores it."""
    return journey.settings
