"""A Spark standalone cluster on this machine: a master and workers, each in its own process.

    with Cluster(directory, workers=2) as cluster:
        spark-submit --master {cluster.master} --conf spark.driver.host={cluster.driver_host} ...

with {cluster.environment}, the cluster's secret.

All processes use pyspark's jars. The master, the workers and the drivers have different loopback addresses,
none of which is 127.0.0.1. The processes cannot access the checkout or its virtual environment, so they
cannot depend on either. All processes die with this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from lakehouse.common.errors import ServiceError
from lakehouse.common.state_files import write_whole
from lakehouse.dev.services.processes import Child, free_port
from lakehouse.storage.spark import properties

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.1
_MASTER, _WORKERS, _DRIVERS = "127.0.0.2", "127.0.0.{}", "127.0.0.9"
_FIRST_WORKER = 10
_WITH_ITS_TEXT = '_SPARK_AUTH_SECRET=$(cat "$0") exec "$@"'


class Cluster:
    """A master and workers, each with the given cores and memory. Logs and work files are in `directory`."""

    def __init__(self, directory: Path, *, workers: int = 2, cores: int = 4, memory: str = "4g") -> None:
        self.driver_host = _DRIVERS
        self._directory, self._secret = directory, directory / "secret"
        self._room = ["--cores", str(cores), "--memory", memory]
        self._port, self._web_port = free_port(), free_port()
        self._master: Child | None = None
        self._workers: dict[int, Child | None] = dict.fromkeys(range(workers))

    @property
    def environment(self) -> dict[str, str]:
        """The environment that a lakehouse job needs to connect."""
        return {"LAKEHOUSE_SPARK_SECRET_FILE": str(self._secret)}

    @property
    def master(self) -> str:
        """The address for `--master`."""
        return f"spark://{_MASTER}:{self._port}"

    def __enter__(self) -> Self:
        """Start all processes; raise ServiceError if the cluster is not ready within a minute."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_whole(self._secret, secrets.token_hex(32), mode=0o600)
        try:
            ports = ["--port", str(self._port), "--webui-port", str(self._web_port)]
            self._master = self._started("master", "master.Master", _MASTER, ports)
            self._await("the master", lambda: self._state()["status"] == "ALIVE")
            for number in self._workers:
                self.start_worker(number)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def workers(self) -> list[int]:
        """The numbers of the workers."""
        return list(self._workers)

    def start_worker(self, number: int) -> None:
        """Start a worker that is not running, and wait until it is registered with the master."""
        before = self._alive()
        host = _WORKERS.format(_FIRST_WORKER + number)
        where = ["--webui-port", "0", "--work-dir", str(self._directory / f"work-{number}")]
        name = f"worker-{number}"
        self._workers[number] = self._started(name, "worker.Worker", host, [*where, *self._room, self.master])
        self._await(name, lambda: self._alive() > before)

    def kill_worker(self, number: int) -> int:
        """Kill a worker and its executors at once, and return how many executors it had."""
        worker = self._workers[number]
        if worker is None:
            return 0
        process = psutil.Process(worker.pid)
        executors = process.children(recursive=True)
        for one in (process, *executors):
            with contextlib.suppress(psutil.NoSuchProcess):  # a script that has just ended
                one.kill()
        self._workers[number] = None
        self._await("the loss of a worker", lambda: self._alive() == self._running())
        return len(executors)

    def _running(self) -> int:
        return sum(worker is not None for worker in self._workers.values())

    def _alive(self) -> int:
        return sum(worker["state"] == "ALIVE" for worker in self._state()["workers"])

    def _state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{_MASTER}:{self._web_port}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _started(self, name: str, what: str, host: str, arguments: list[str]) -> Child:
        home = Path(pyspark.__file__).parent
        directory = self._directory / name
        directory.mkdir(parents=True, exist_ok=True)
        java = os.environ.get("JAVA_HOME")
        environment = {
            "PATH": os.defpath,
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": host,  # otherwise the web pages listen on every network of the machine
            # The master notices a killed worker when its connection closes, and a hanging worker after this
            # time. With less than a minute, it repeatedly considered working workers as hanging on a busy
            # machine.
            "SPARK_MASTER_OPTS": "-Dspark.worker.timeout=60",
            **({"JAVA_HOME": java} if java else {}),
        }
        cleared = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in environment.items())]
        told = ["/bin/sh", "-c", _WITH_ITS_TEXT, str(self._secret)]
        program = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        command = [*program, "--host", host, "--properties-file", str(properties.CLUSTER), *arguments]
        return Child(
            [*cleared, *told, *command],
            directory=directory,
            console=directory / "console.log",
            with_parent=True,
        )

    def _await(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                if holds():
                    return
            except (OSError, ValueError):  # the master does not answer yet
                pass
            if time.monotonic() > deadline:
                words = "" if self._master is None else self._master.last_lines()
                raise ServiceError(f"{what} was waited for in vain; the master's last words:\n{words}")
            time.sleep(_POLL_S)

    def _stop(self) -> None:
        for child in [*self._workers.values(), self._master]:
            if child is not None:
                child.stop(timeout_s=_STOP_TIMEOUT_S)
