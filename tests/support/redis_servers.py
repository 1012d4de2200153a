"""Redis servers for single tests, with options that clients cannot set on the session's server."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.certificates import Certified

QUIET = ("--save", "", "--appendonly", "no")
_START_TIMEOUT_S = 60.0


def executable() -> str:
    """Return the path of a server with TLS; every installation also includes it under this tool's name."""
    found = shutil.which("redis-check-rdb")
    assert found is not None, "Redis is missing: scripts/redis.sh installs it"
    return found


@contextmanager
def process(directory: Path, *options: str, of: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a directory until the end of the block; it may not respond at first."""
    directory.mkdir(exist_ok=True)
    with (directory / "log").open("wb") as log:
        command = ["redis-server", *options]  # the program's role depends on this name
        server = subprocess.Popen(command, executable=of or executable(), cwd=directory, stdout=log)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


@contextmanager
def at_socket(directory: Path, *options: str, of: str | None = None) -> Iterator[str]:
    """Run a server that listens only on a socket in the directory; yield its URL."""
    path = directory / "redis.sock"
    with process(directory, "--port", "0", "--unixsocket", path.name, *QUIET, *options, of=of) as server:
        _await(server, socket.AF_UNIX, str(path))
        yield f"unix://{path}"


def await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server listens on the port."""
    _await(server, socket.AF_INET, ("127.0.0.1", port))


def _await(server: subprocess.Popen[bytes], family: socket.AddressFamily, address: object) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        with socket.socket(family) as probe:
            if not probe.connect_ex(address):  # type: ignore[arg-type]
                return
        assert server.poll() is None, f"the server at {address} has ended; its log says why"
        assert time.monotonic() < deadline, f"the server {server.pid} at {address} does not answer"
        time.sleep(0.02)


def tls_options(files: Certified, port: int) -> tuple[str, ...]:
    """Return the options of a server that listens on the port only with TLS."""
    own = ("--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key))
    listening = ("--port", "0", "--tls-port", str(port))
    return (*listening, *own, "--tls-ca-cert-file", str(files.authority), "--tls-auth-clients", "no")
