"""One Spark, broker and Redis for all tests of a worker, and a lake for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest
from pyspark.sql import SparkSession
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

import __main__
from lakehouse.dev.services.services import Endpoints, local_services
from lakehouse.settings import Settings, load_settings
from lakehouse.storage.spark.session import build_session
from lakehouse.storage.tables import Lake
from lakehouse.testing.session import SMALL
from tests.support import brokers
from tests.support.catalog_names import without_names
from tests.support.settings import MakeSettings, settings_for

for variable in [name for name in os.environ if name.startswith("LAKEHOUSE_") and name != "LAKEHOUSE_CACHE"]:
    del os.environ[variable]
if not hasattr(__main__, "__file__"):
    # PySpark takes a process without it, such as an xdist worker, for a run of its doctests and ends it when
    # Great Expectations imports pyspark.sql.connect.
    __main__.__file__ = __file__
os.environ["TZ"] = "America/St_Johns"  # nothing may depend on the machine's time zone

# make test draws the same cases in every run, so a failure can be reproduced; make soak draws others.
hypothesis.settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("random", database=None, deadline=None, print_blob=True)
hypothesis.settings.load_profile("repeatable")

FILLED_LAKE = frozenset(
    f"tests/integration/test_{name}.py" for name in ("audit", "every_stream", "expect", "notebooks", "served")
)
"""Files whose tests share a lake that takes a minute or two to fill."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option to run any test with another broker."""
    parser.addoption("--kafka", metavar="VERSION", help="the broker's version, instead of the sandbox's")


def pytest_configure(config: pytest.Config) -> None:
    """Use the broker of that version in each worker."""
    if version := config.getoption("--kafka"):
        brokers.use(version)


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Keeps the tests of a file in one worker, and those of the filled lake together."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "filled lake" if file in FILLED_LAKE else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Distribute tests this way with --dist loadfile."""
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def session_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings().changed({"home": tmp_path_factory.mktemp("home")})


@pytest.fixture(scope="session")
def services(session_settings: Settings) -> Iterator[Endpoints]:
    """Yield a real broker and a real Redis, stopped at the end of the session."""
    with local_services(session_settings, brief=True) as endpoints:
        yield endpoints


@pytest.fixture(scope="session")
def spark(session_settings: Settings) -> Iterator[SparkSession]:
    """Yield the worker's only Spark; tests that start processes use the product's own options."""
    session = build_session(session_settings, "lakehouse tests", options=SMALL)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lakehouse_spark(spark: SparkSession) -> SparkSession:
    """Return the same session for the fixtures of `lakehouse.dev.pytest_plugin`."""
    return spark


@pytest.fixture(scope="module", autouse=True)
def forget_logs() -> Iterator[None]:
    """Drop Delta's cached logs once the tests of a file have ended.

    For an hour, Delta keeps the snapshots of every log it opens; those of hundreds of lakes fill the heap.
    """
    yield
    session = SparkSession.getActiveSession()
    if session is not None:
        session._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


@pytest.fixture
def nameless(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield the session, with no named tables or views before and after the test; tables are external."""
    with without_names(spark):
        yield spark


@pytest.fixture(scope="module")
def module_settings(
    session_settings: Settings, services: Endpoints, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Return settings with a lake and topics shared by all tests of a file."""
    return settings_for(session_settings, services, tmp_path_factory.mktemp("module"))


@pytest.fixture
def make_settings(session_settings: Settings, services: Endpoints, tmp_path: Path) -> MakeSettings:
    """Make settings with the test's own lake, topics and Redis database; `changes` override them."""
    own = settings_for(session_settings, services, tmp_path)

    def make(changes: Mapping[str, object] | None = None) -> Settings:
        return own.changed(changes or {})

    return make


@pytest.fixture
def lake_settings(session_settings: Settings, tmp_path: Path) -> Settings:
    """Return settings for tests that need a lake but no services."""
    return session_settings.changed({"lake": str(tmp_path / "lake")})


@pytest.fixture
def lake(spark: SparkSession, lake_settings: Settings) -> Lake:
    """Return the lake of these settings."""
    return Lake(spark, lake_settings.lake)
