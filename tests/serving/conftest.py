"""A Redis for the server's tests, which need neither Spark nor Kafka, and a lake for each test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr
from starlette.testclient import TestClient

from lakehouse.dev.samples import produce_route
from lakehouse.serving.app import make_app
from lakehouse.serving.security.access import Access
from lakehouse.settings import Settings
from lakehouse.streams.registry import load
from tests.support import redis_servers
from tests.support.browser import Page, browsing
from tests.support.served_lakes import PATIENCE_S, MakeClient, ServedLake


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a Redis for these tests only."""
    with redis_servers.at_socket(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def lake(session_settings: Settings, redis_server: str, tmp_path: Path) -> ServedLake:
    """Return an empty lake with an empty Redis."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
    changes = {
        "lake": str(tmp_path / "lake"),
        "home": tmp_path / "home",
        "redis.url": SecretStr(redis_server),
    }
    return ServedLake(session_settings.changed(changes))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """Yield a page of a separate browser."""
    with browsing(tmp_path) as made:
        yield made


@pytest.fixture
def make_client(lake: ServedLake) -> Iterator[MakeClient]:
    """Make clients of a server on this machine; `changes` override the lake's settings."""
    made: list[TestClient] = []

    def make(
        access: Access | None = None,
        url: str = "http://localhost:8080",
        *,
        produces: bool = False,
        changes: Mapping[str, object] | None = None,
    ) -> TestClient:
        settings = lake.settings.changed(changes or {})
        streams = load(settings)
        more = [produce_route.router(settings, streams)] if produces else []
        app = make_app(settings, streams, access or Access(None), more=more, redis_timeout_s=PATIENCE_S)
        client = TestClient(app, base_url=url, raise_server_exceptions=False)
        made.append(client.__enter__())
        return client

    yield make
    for client in made:
        client.__exit__(None, None, None)


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    """Return a client of a server on this machine."""
    return make_client()
