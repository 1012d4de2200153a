"""Start, identify and stop the processes of the local services.

A process is recorded in a pid file before anything waits for it. The next command therefore finds the process
even if the command that started it was killed. A pid alone proves nothing, because the kernel reuses pids.
The creation time must therefore also match, and the command line must be the service's.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil

from lakehouse.common.errors import ServiceError
from lakehouse.common.state_files import OTHERS, OWNER_ONLY, write_whole
from lakehouse.storage.spark import java

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

LOOPBACK = "127.0.0.1"
_CLOCK_TOLERANCE_S = 2.0  # creation times depend on the boot time, which NTP adjusts slightly
_ROTATE_AT_BYTES = 1 << 20
_POLL_S = 0.02
_TAIL_BYTES = 16_384
# Below the kernel's range for outgoing connections (32768 and up), so that no client connection can take a
# service's port while the service is down.
_PORTS = range(20_000, 30_000)
_NEAR, _LAST_PORT = 20, 65_535
_WRAPPER = Path(__file__).with_name("die_with_parent.py")


@dataclass(frozen=True)
class Record:
    """A process as recorded in a pid file. `created` is in seconds since the epoch."""

    pid: int
    created: float
    port: int


@dataclass(frozen=True)
class Service(ABC):
    """A local service, as seen by the code that starts and stops it."""

    name: ClassVar[str]

    home: Path
    configured_port: int  # 0 means any free port

    @property
    def directory(self) -> Path:
        """The directory for all of the service's files except its logs."""
        return self.home / self.name

    @property
    def data(self) -> Path:
        """The directory for the service's data."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """The log file that is shown to the user."""
        return self.home / "logs" / f"{self.name}.log"

    @property
    def console(self) -> Path:
        """The file to which standard output and error are written."""
        return self.log

    @property
    def pid_file(self) -> Path:
        """The file in which the running process is recorded."""
        return self.directory / f"{self.name}.pid"

    @property
    def port_file(self) -> Path:
        """The file in which the last run's port is stored for the next run."""
        return self.directory / "port"

    @abstractmethod
    def require(self) -> None:
        """Raise ServiceError if something that the service needs is missing."""

    @abstractmethod
    def configure(self, port: int) -> None:
        """Write the configuration files for a start on this port."""

    @abstractmethod
    def preparation(self) -> list[str]:
        """Return a command to run before the first start, or an empty list if none is needed."""

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """Return the command that runs the service."""

    @abstractmethod
    def owns(self, command_line: Sequence[str], port: int) -> bool:
        """Return whether a command line belongs to this service and, if it shows a home, to this home."""

    @abstractmethod
    def endpoint(self, port: int) -> str:
        """Return the address to which clients connect."""

    def shown(self, port: int) -> str:
        """Return the address for display, without a password."""
        return self.endpoint(port)

    def settings(self) -> dict[str, str]:
        """Return the settings that clients need in addition to the endpoint."""
        return {}

    def let_in(self, port: int) -> None:  # noqa: B027 - most services have no users
        """Set the users' passwords, once the service is running."""

    @abstractmethod
    def answers(self, record: Record) -> bool:
        """Return whether the process answers clients. The check takes at most about two seconds."""


def read_record(service: Service) -> Record | None:
    """Return the process that the pid file names, or None if the file is missing or unreadable."""
    try:
        found = json.loads(service.pid_file.read_text(encoding="utf-8"))
        return Record(pid=int(found["pid"]), created=float(found["created"]), port=int(found["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(service: Service, record: Record) -> None:
    """Write the pid file, and store the port for the next start."""
    write_whole(service.pid_file, json.dumps(asdict(record)), mode=OWNER_ONLY)
    write_whole(service.port_file, f"{record.port}\n", mode=OWNER_ONLY)


def find_process(service: Service, record: Record | None) -> psutil.Process | None:
    """Return the recorded process if it still runs, or None if it has ended or its pid was reused."""
    if record is None:
        return None
    try:
        process = psutil.Process(record.pid)
        ours = (
            abs(process.create_time() - record.created) <= _CLOCK_TOLERANCE_S
            and process.status() != psutil.STATUS_ZOMBIE
            and service.owns(process.cmdline(), record.port)
        )
    except psutil.Error:
        return None
    return process if ours else None


def choose_port(service: Service) -> int:
    """Return a free port: the configured port, otherwise the last run's port, otherwise a random port.

    Raises ServiceError if the configured port is in use.
    """
    if service.configured_port:
        if not is_free(service.configured_port):
            raise ServiceError(
                f"{service.name}: port {service.configured_port} on {LOOPBACK} is in use by another program; "
                f"stop that program, or set --{service.name}-port to another port, or to 0 for any free port"
            )
        return service.configured_port
    try:
        last = int(service.port_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = 0
    return last if 0 < last <= _LAST_PORT and is_free(last) else free_port()


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # Servers also set this option. With it, connections that are closing do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except OSError:
            return False
    return True


def free_port(*, other_than: Collection[int] = ()) -> int:
    """Return a random free port."""
    for port in random.sample(_PORTS, 100):
        if port not in other_than and is_free(port):
            return port
    raise ServiceError(
        f"no free port among a hundred tried between {_PORTS.start} and {_PORTS.stop} on {LOOPBACK}"
    )


def free_port_after(port: int, *, other_than: Collection[int]) -> int:
    """Return the first free port after `port`. Raises ServiceError if the next twenty are all in use."""
    last = min(port + _NEAR, _LAST_PORT)
    for one in range(port + 1, last + 1):
        if one not in other_than and is_free(one):
            return one
    raise ServiceError(
        f"no port from {port + 1} to {last} on {LOOPBACK} is free for Kafka's controller: set "
        "--kafka-port to a port that is followed by free ports, or to 0 for any free ports"
    )


def dying_with_parent(command: list[str]) -> list[str]:
    """Wrap a command, so that the kernel kills it when the thread that started it ends."""
    return [sys.executable, "-I", "-S", str(_WRAPPER), str(os.getpid()), *command]


class Child:
    """A child process of this process."""

    def __init__(self, command: list[str], *, directory: Path, console: Path, with_parent: bool) -> None:
        """Start the command in a separate session, which the terminal's Ctrl-C does not reach.

        With `with_parent`, the kernel kills the command when this process ends for any reason.
        """
        self.console = console
        if console.exists() and console.stat().st_size > _ROTATE_AT_BYTES:
            console.replace(console.with_suffix(f"{console.suffix}.1"))
        self._console_start = console.stat().st_size if console.exists() else 0
        if with_parent:
            command = dying_with_parent(command)
        started: Future[subprocess.Popen[bytes]] = Future()
        # The kernel sends the signal of die_with_parent.py when the forking thread ends. The caller's thread
        # may end long before its process does, so a separate thread forks, and lives until the child has
        # ended.
        threading.Thread(
            target=_start_and_wait, args=(command, directory, console, started), daemon=True
        ).start()
        self._popen = started.result()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._popen.pid

    def exit_code(self) -> int | None:
        """Return the exit code, negative if a signal killed the child, or None while the child runs."""
        return self._popen.poll()

    def record(self, port: int) -> Record:
        """Return the record of the child to write to the pid file."""
        try:
            created = psutil.Process(self.pid).create_time()
        except psutil.Error:  # the process exited immediately, as the caller will notice
            created = 0.0
        return Record(pid=self.pid, created=created, port=port)

    def last_lines(self, count: int = 8) -> str:
        """Return the console file's last lines, indented and without Java stack frames."""
        with self.console.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._console_start, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
        lines = [line.rstrip() for line in text.split("\n")]
        kept = [line for line in lines if line and not line.lstrip().startswith(("at ", "... "))]
        return "\n".join(f"  {line}" for line in kept[-count:]) or "  (it wrote nothing)"

    def stop(self, *, timeout_s: float) -> None:
        """Stop the child with SIGTERM, and with SIGKILL if it has not exited after the timeout."""
        self._popen.terminate()
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


def stop_process(name: str, process: psutil.Process, *, timeout_s: float) -> bool:
    """Stop a process with SIGTERM, and after the timeout with SIGKILL. Return whether SIGKILL was needed."""
    try:
        process.terminate()
        if _ends(process, timeout_s):
            return False
        process.kill()
        if _ends(process, timeout_s):
            return True
    except psutil.NoSuchProcess:
        return False  # the process ended by itself in the meantime
    except psutil.AccessDenied as error:
        raise ServiceError(
            f"{name}: process {process.pid} belongs to another user and could not be stopped; run this "
            "as that user"
        ) from error
    raise ServiceError(f"{name}: process {process.pid} did not exit, even after SIGKILL")


def _ends(process: psutil.Process, timeout_s: float) -> bool:
    """Wait for a process, and return whether it ends within the timeout.

    A zombie counts as ended. psutil's own wait would also wait until the zombie is reaped. In a container
    whose first process does not reap orphans, zombies are never reaped.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(_POLL_S)
    return False


def _start_and_wait(
    command: list[str], directory: Path, console: Path, started: Future[subprocess.Popen[bytes]]
) -> None:
    try:
        with os.fdopen(os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER_ONLY), "ab") as output:
            popen = subprocess.Popen(
                command,
                cwd=directory,
                env=os.environ | java.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=OTHERS,
            )
    except OSError as error:
        started.set_exception(ServiceError(f"{command[0]} could not be started: {error}"))
        return
    started.set_result(popen)
    popen.wait()
