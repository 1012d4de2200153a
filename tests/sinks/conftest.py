"""One PostgreSQL server for all tests of a worker, and a separate database for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from tests.sinks.gold_rows import Gold
from tests.support import postgres_servers
from tests.support.postgres_servers import Server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    with postgres_servers.server() as server:
        yield server


@pytest.fixture
def database(postgres_server: Server) -> str:
    """Return the URL of an empty database."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    with postgres_server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.url(name)


@pytest.fixture
def lake_of(spark: SparkSession, lake_settings: Settings) -> Callable[[str], Gold]:
    def make(url: str) -> Gold:
        return Gold(spark, lake_settings.changed({"postgres.url": SecretStr(url)}))

    return make


@pytest.fixture
def made(lake_of: Callable[[str], Gold], database: str) -> Gold:
    return lake_of(database)
