"""A schema registry for single tests: Apicurio with Confluent's API, and its schemas in a directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from lakehouse.dev.services.processes import LOOPBACK, free_port
from lakehouse.settings.registry_access import RegistryAccess

_LEAST_JAVA = 21
_START_TIMEOUT_S = 120.0
_PROGRAM = Path(sys.prefix) / "share" / "lakehouse" / "apicurio" / "quarkus-run.jar"


class Registry:
    """A registry on a loopback port; it can be stopped and restarted without losing its contents."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.management_port = free_port(other_than=(self.port,))
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def access(self) -> RegistryAccess:
        return RegistryAccess(f"http://{LOOPBACK}:{self.port}/apis/ccompat/v7")

    def start(self) -> None:
        """Start the registry, unless it is running, and wait until it responds."""
        if self._server is not None:
            return
        assert _PROGRAM.exists(), "Apicurio is missing: scripts/apicurio.sh fetches it"
        options = {
            "quarkus.http.host": LOOPBACK,
            "quarkus.http.port": self.port,
            "quarkus.management.host": LOOPBACK,
            "quarkus.management.port": self.management_port,
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": f"jdbc:h2:file:{self.directory}/registry",
        }
        said = [f"-D{name}={value}" for name, value in options.items()]
        with (self.directory / "log").open("ab") as log:
            command = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", *said, "-jar", str(_PROGRAM)]
            self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            assert self._server.poll() is None, f"Apicurio has ended: {self.directory / 'log'} says why"
            assert time.monotonic() < deadline, "Apicurio does not answer"
            time.sleep(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the registry with a signal, if it is running; nothing then listens on its port."""
        if self._server is not None:
            self._server.send_signal(number)
            self._server.wait(60)
            self._server = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.access.url}/subjects", timeout=5):  # noqa: S310 - of loopback
                return True
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def registry(directory: Path) -> Iterator[Registry]:
    """Run a registry until the end of the block."""
    running = Registry(directory)
    try:
        yield running
    finally:
        running.stop()


@cache
def java() -> str:
    """Return a Java that can run the registry; skip the test if there is none."""
    places = [shutil.which("java"), *map(str, Path("/usr/lib/jvm").glob("*/bin/java"))]
    if home := os.environ.get("JAVA_HOME"):
        places.append(f"{home}/bin/java")
    for place in filter(None, places):
        told = subprocess.run([place, "-version"], capture_output=True, text=True, check=False).stderr
        if (found := re.search(r'version "(\d+)', told)) and int(found[1]) >= _LEAST_JAVA:
            return place
    pytest.skip(f"Apicurio needs Java {_LEAST_JAVA} or later, and there is none: the registry is not tested")
