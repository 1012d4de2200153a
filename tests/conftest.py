"""One Spark, one broker and one Redis for all tests of a worker; a lake of its own for every test."""

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
    # A process without it, as a worker of xdist is, PySpark takes for a run of its doctests and ends when
    # Great Expectations imports pyspark.sql.connect.
    __main__.__file__ = __file__
os.environ["TZ"] = "America/St_Johns"  # nothing may depend on the machine's time zone

# make test draws the same cases in every run, so that one that fails can be looked at; make soak others.
hypothesis.settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("random", database=None, deadline=None, print_blob=True)
hypothesis.settings.load_profile("repeatable")

FILLED_LAKE = frozenset(
    f"tests/integration/test_{name}.py" for name in ("audit", "every_stream", "expect", "notebooks", "served")
)
"""The files whose tests share a lake that takes a minute or two to fill."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs any test on another broker."""
    parser.addoption("--kafka", metavar="VERSION", help="the broker's version, instead of the sandbox's")


def pytest_configure(config: pytest.Config) -> None:
    """Have the broker of that version, in each worker."""
    if version := config.getoption("--kafka"):
        brokers.use(version)


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Keeps the tests of a file in one worker, and those of the filled lake together."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "filled lake" if file in FILLED_LAKE else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Distribute tests so, with --dist loadfile."""
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def session_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings().changed({"home": tmp_path_factory.mktemp("home")})


@pytest.fixture(scope="session")
def services(session_settings: Settings) -> Iterator[Endpoints]:
    """A real broker and a real Redis, stopped at the end of the session."""
    with local_services(session_settings, brief=True) as endpoints:
        yield endpoints


@pytest.fixture(scope="session")
def spark(session_settings: Settings) -> Iterator[SparkSession]:
    """The one Spark of the worker; tests that start processes have the product's own options."""
    session = build_session(session_settings, "lakehouse tests", options=SMALL)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lakehouse_spark(spark: SparkSession) -> SparkSession:
    """The same for the fixtures of `lakehouse.dev.pytest_plugin`."""
    return spark


@pytest.fixture(scope="module", autouse=True)
def forget_logs() -> Iterator[None]:
    """Drop what Delta keeps of the tables of a file once its tests have ended.

    It keeps the snapshots of every log it has opened for an hour; those of hundreds of lakes fill the heap.
    """
    yield
    session = SparkSession.getActiveSession()
    if session is not None:
        session._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


@pytest.fixture
def nameless(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which knows no table or view by name before and after the test; tables are external."""
    with without_names(spark):
        yield spark


@pytest.fixture(scope="module")
def module_settings(
    session_settings: Settings, services: Endpoints, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Settings with a lake and topics for all tests of a file."""
    return settings_for(session_settings, services, tmp_path_factory.mktemp("module"))


@pytest.fixture
def make_settings(session_settings: Settings, services: Endpoints, tmp_path: Path) -> MakeSettings:
    """Make settings with a lake, topics and a Redis database of the test's own; changes go over them."""
    own = settings_for(session_settings, services, tmp_path)

    def make(changes: Mapping[str, object] | None = None) -> Settings:
        return own.changed(changes or {})

    return make


@pytest.fixture
def lake_settings(session_settings: Settings, tmp_path: Path) -> Settings:
    """Settings for tests that need a lake but no services."""
    return session_settings.changed({"lake": str(tmp_path / "lake")})


@pytest.fixture
def lake(spark: SparkSession, lake_settings: Settings) -> Lake:
    """The lake of these settings."""
    return Lake(spark, lake_settings.lake)
