"""A run's own broker, Redis and PostgreSQL, which can be stopped and restarted with their data.

A run may also have a schema registry.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from unittest.mock import patch

import psutil

from lakehouse.dev.services import redis_server, services
from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import load_settings
from tests.support import postgres_servers, registries
from tests.support.registries import Registry

Name = Literal["kafka", "redis", "postgres", "registry"]
END_TIMEOUT_S = 30.0


class OwnServices:
    """The services, which are always stopped at the end of the block."""

    def __init__(self, home: Path, *, with_registry: bool = False) -> None:
        self._home, self._with_registry = home, with_registry
        self._settings = load_settings().changed({"home": home})
        self._stack = ExitStack()
        self.endpoints = Endpoints("", "")
        self.registry: Registry | None = None

    def __enter__(self) -> Self:
        if self._with_registry:  # first, because it skips the test if there is no suitable Java
            (directory := self._home / "registry").mkdir(parents=True)
            self.registry = self._stack.enter_context(registries.registry(directory))
        self.postgres = self._stack.enter_context(postgres_servers.server())
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start services that are not running, on the same ports; faults may change Redis's settings."""
        self.postgres.start()
        if self.registry is not None:
            self.registry.start()
        before = self.endpoints
        with patch.object(redis_server, "_RIGHTS", f"{redis_server._RIGHTS} +config|set"):
            self.endpoints = self._stack.enter_context(services.local_services(self._settings))
        assert before in {Endpoints("", ""), self.endpoints}, "a service came back on another port"

    def end(self, name: Name, number: signal.Signals) -> None:
        """End a service with a signal, and wait until its process no longer exists."""
        if name == "postgres":
            self.postgres.end(number)
            return
        if name == "registry":
            assert self.registry is not None, "there is no registry"
            self.registry.stop(number)
            return
        (status,) = (one for one in services.status(self._settings) if one.name == name)
        assert status.pid is not None, f"{name} does not run"
        process = psutil.Process(status.pid)
        process.send_signal(number)
        deadline = time.monotonic() + END_TIMEOUT_S
        while runs(process):
            assert time.monotonic() < deadline, f"{name} does not end by {number.name}"
            time.sleep(0.05)


def runs(process: psutil.Process) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
