"""PostgreSQL servers for single tests, from an installation's programs, run as an unprivileged user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg

from lakehouse.dev.services.processes import LOOPBACK, free_port
from tests.support.certificates import Certified

USER, PASSWORD = "lakehouse", "se/cret"
_START_TIMEOUT_S = 60.0


def program(name: str) -> str:
    """Return the path of a server program, which is not on PATH in Debian."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    found = shutil.which(name) or (str(debian[-1]) if debian else None)
    assert found is not None, "PostgreSQL is missing: scripts/postgres.sh installs it"
    return found


class Server:
    """A server with its data in a directory, on a loopback port; it can be killed and restarted."""

    def __init__(
        self,
        directory: Path,
        certified: Certified | None = None,
        *,
        fsync: bool = False,
        encoding: str = "UTF8",
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self._as = (
            ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups") if os.geteuid() == 0 else ()
        )
        self._options = [
            "-c",
            f"fsync={'on' if fsync else 'off'}",
            "-c",
            "max_connections=40",
            "-c",
            "shared_buffers=32MB",
        ]
        self._server: subprocess.Popen[bytes] | None = None
        secret = directory / "password"
        secret.write_text(PASSWORD)
        if certified is not None:
            for file in (certified.certificate, certified.key):
                shutil.copy(file, directory / file.name)
                (directory / file.name).chmod(0o600)
            self._options += ["-c", "ssl=on", "-c", f"ssl_cert_file={directory / certified.certificate.name}"]
            self._options += ["-c", f"ssl_key_file={directory / certified.key.name}"]
        if self._as:
            for one in (directory, *directory.iterdir()):
                shutil.chown(one, "nobody", "nogroup")
        command = [
            program("initdb"),
            "-D",
            str(self._data),
            "-U",
            USER,
            f"--encoding={encoding}",
            "--locale=C.UTF-8" if encoding == "UTF8" else "--locale=C",
        ]
        command += ["--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        subprocess.run([*self._as, *command], check=True, capture_output=True, cwd=directory)
        self.start()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def url(self, database: str = "postgres", user: str = USER, secret: str = PASSWORD) -> str:
        """Return the URL of a database."""
        return f"postgresql://{user}:{quote(secret, safe='')}@{LOOPBACK}:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """Return a connection that commits each statement."""
        return psycopg.connect(self.url(database), autocommit=True)

    def start(self) -> None:
        """Start the server, unless it is running, and wait until it responds."""
        if self._server is not None:
            return
        command = [
            program("postgres"),
            "-D",
            str(self._data),
            "-p",
            str(self.port),
            "-k",
            str(self.directory),
        ]
        with (self.directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [*self._as, *command, "-c", f"listen_addresses={LOOPBACK}", *self._options],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            assert self._server.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)

    def stand_by(self) -> None:
        """Make the server a standby, which refuses writes, at its next start."""
        mark = self._data / "standby.signal"
        mark.touch()
        if self._as:
            shutil.chown(mark, "nobody", "nogroup")

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server with a signal, if it is running; its other processes end with it."""
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(number)
            server.wait()
        while self._answers():
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def server(
    certified: Certified | None = None, *, fsync: bool = False, encoding: str = "UTF8"
) -> Iterator[Server]:
    """Run a server until the end of the block; without `fsync`, commits only survive server crashes."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))  # pytest's own is only for its owner
    try:
        made = Server(directory, certified, fsync=fsync, encoding=encoding)
        try:
            yield made
        finally:
            made.end()
    finally:
        shutil.rmtree(directory)
