"""Services that the stories of a process share: a session, a broker, a Redis and a PostgreSQL, all real."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from lakehouse.dev.services.services import local_services
from lakehouse.settings import Settings, load_settings
from lakehouse.settings.registry_access import RegistryAccess
from lakehouse.storage.kafka.clients import Producer
from lakehouse.storage.spark.session import build_session
from lakehouse.testing.session import SMALL
from tests.support import postgres_servers
from tests.support.registries import registry

_LASTING = {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC"}
"""Java options for a session that runs many stories, so that the JVM's second compiler pays off."""


@dataclass
class Shared:
    """The services that the stories of a process share."""

    spark: SparkSession
    settings: Settings
    postgres: str
    home: Path
    producer: Producer
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    templates: dict[str, Path] = field(default_factory=dict)
    ending: ExitStack = field(default_factory=ExitStack)
    _registry: RegistryAccess | None = None

    def registry(self) -> RegistryAccess:
        """Return the schema registry, which is started by the first story that needs it."""
        if self._registry is None:
            directory = self.home / "registry"
            directory.mkdir()
            self._registry = self.ending.enter_context(registry(directory)).access
        return self._registry

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the duration of the block to the total."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - began


@contextmanager
def shared(settings: Settings | None = None, spark: SparkSession | None = None) -> Iterator[Shared]:
    """Start the services and the session. Services that are passed in are used instead, and keep running.

    In that case, `settings` contain the addresses of the broker and Redis.
    """
    home = Path(tempfile.mkdtemp(prefix="simulation-"))
    try:
        with _services(settings, home) as found, postgres_servers.server() as postgres:
            session = spark or build_session(found, "lakehouse simulation", options=SMALL | _LASTING)
            # kafka-python's client uses a whole core while it waits.
            producer = Producer(found.kafka.access, {"acks": "all", "linger.ms": 0})
            try:
                with ExitStack() as ending:
                    yield Shared(session, found, postgres.url(), home, producer, ending=ending)
            finally:
                if spark is None:
                    session.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _services(settings: Settings | None, home: Path) -> Iterator[Settings]:
    if settings is not None:
        yield settings
        return
    own = load_settings().changed({"home": home / "home"})
    with local_services(own, brief=True) as endpoints:
        yield own.changed(endpoints.update)
