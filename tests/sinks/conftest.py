"""One PostgreSQL for all tests of a worker; a database of its own for every test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests import postgres_servers
from tests.postgres_servers import Server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    with postgres_servers.server() as server:
        yield server


@pytest.fixture
def database(postgres_server: Server) -> str:
    """The URL of an empty database."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    with postgres_server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.url(name)
