"""Commands that run as processes, as when users run them, each in its own place.

A place is a home, a lake, topics of every stream and a Redis database.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from deltalake import DeltaTable
from pydantic import SecretStr

from lakehouse.dev.services.services import Endpoints
from lakehouse.settings import Settings, load_settings
from lakehouse.storage.kafka.topics import create_topics
from tests.support import redis_databases
from tests.support.streams import STREAMS

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv" / "bin"
LAKEHOUSE = str(BIN / "lakehouse")
START_TIMEOUT_S = 300.0
LEAVE_TIMEOUT_S = 180.0
QUICK_JVM = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}  # short-lived, so the first compiler is enough
NOISE = re.compile(r"\b(INFO|DEBUG|WARN|ERROR|Traceback|Exception)\b|Setting default log level")


@dataclass(frozen=True)
class Place:
    """A home with its own lake and topics, and the environment for its commands."""

    home: Path
    services: Endpoints
    redis_url: str
    suffix: str

    @property
    def topics(self) -> dict[str, str]:
        """The topics of every stream, by default name."""
        return {topic: f"{topic}-{self.suffix}" for stream in STREAMS for topic in stream.topics}

    @property
    def topic_in(self) -> str:
        return self.topics["metrics-events"]

    @property
    def topic_out(self) -> str:
        return self.topics["metrics-aggregated-1m"]

    def settings(self, changes: Mapping[str, object] | None = None) -> Settings:
        """Return the environment's settings, for code that runs in this process."""
        update = {
            "home": self.home,
            "lake": str(self.home / "lake"),
            "kafka.bootstrap_servers": self.services.kafka,
            "redis.url": SecretStr(self.redis_url),
            "topics": self.topics,
        }
        return load_settings().changed(update | dict(changes or {}))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",  # as in an activated environment
            "COLUMNS": "300",
            "LAKEHOUSE_HOME": str(self.home),
            "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": self.services.kafka,
            "LAKEHOUSE_REDIS_URL": self.redis_url,
            "LAKEHOUSE_TOPICS": json.dumps(self.topics),
            "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
            "PYTHONPATH": str(ROOT),  # the code under test, wherever the command is installed
            **QUICK_JVM,
        }

    def table(self, name: str) -> pa.Table:
        """Return a table, read without Spark."""
        layer, _, table = name.partition(".")
        return DeltaTable(str(self.home / "lake" / layer / table)).to_pyarrow_table()

    def rows(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table(name).to_pylist()
        return rows


@contextmanager
def place(home: Path, services: Endpoints, database: int) -> Iterator[Place]:
    """Yield a place on the session's services, with a Redis database that no other test uses."""
    with redis_databases.emptied(services.redis, database) as url:
        made = Place(home, services, url, uuid.uuid4().hex[:8])
        create_topics(services.access, {made.topic_in: 4})
        yield made


def submit(layer: str, *arguments: str) -> list[str]:
    """Return the command of a job, as typed in the activated virtual environment."""
    properties = ["--properties-file", ".venv/share/lakehouse/laptop.properties"]
    return ["spark-submit", *properties, f"jobs/{layer}.py", *arguments]


def finish(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def processes_of(home: Path) -> list[psutil.Process]:
    """Return every running process whose working directory is in the home, regardless of pid files."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(home):
                found.append(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port that refuses connections during the block: it is in use, but nothing listens on it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def unused_port() -> int:
    """Return a port for a server, outside the range from which the kernel assigns ports."""
    return unused_ports(1)[0]


def unused_ports(many: int) -> list[int]:
    """Return the given number of different ports for servers."""
    first = 10_000 + os.getpid() * 32 % 20_000  # different in each worker, though their process ids are close
    found: list[int] = []
    for port in range(first, first + 1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
        if len(found) == many:
            return found
    raise AssertionError("a thousand ports are in use")


class Process:
    """A command in its own process group, as a terminal starts it, with its output in files."""

    def __init__(self, command: list[str], environment: Mapping[str, str], directory: Path) -> None:
        directory.mkdir()
        self._stdout, self._stderr = directory / "stdout", directory / "stderr"
        with self._stdout.open("w") as stdout, self._stderr.open("w") as stderr:
            self._popen = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=stdout, stderr=stderr, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def output(self) -> str:
        return self._stdout.read_text()

    @property
    def errors(self) -> str:
        return self._stderr.read_text()

    def await_output(self, text: str) -> None:
        """Wait until the text has been printed."""
        self.await_(lambda: text in self.output)

    def await_path(self, path: Path, timeout_s: float) -> None:
        """Wait until a file exists."""
        self.await_(path.exists, timeout_s)

    def wait(self, timeout_s: float = LEAVE_TIMEOUT_S) -> int:
        return self._popen.wait(timeout_s)

    def left_behind(self) -> list[psutil.Process]:
        """Return the group's running processes, after giving them a moment to end."""
        deadline = time.monotonic() + 60
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return alive

    def end(self) -> None:
        for process in self._alive():
            process.kill()
        self._popen.wait()

    def everything(self) -> str:
        return f"{self.output}\n{self.errors}"

    def await_(self, is_done: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until a condition holds; fail if the process ends first."""
        deadline = time.monotonic() + timeout_s
        while not is_done():
            assert self._popen.poll() is None, self.everything()
            assert time.monotonic() < deadline, self.everything()
            time.sleep(0.1)

    def _alive(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if os.getpgid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, ProcessLookupError):
                continue
        return found


@contextmanager
def running(command: list[str], environment: Mapping[str, str], directory: Path) -> Iterator[Process]:
    process = Process(command, environment, directory)
    try:
        yield process
    finally:
        process.end()
