"""The pipeline as users start it, in a separate process, and the resources that applications use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring import cpu_seconds
from lakehouse.common.errors import LakehouseError
from lakehouse.settings import Settings

_START_TIMEOUT_S = 120.0
_LEAVE_TIMEOUT_S = 120.0
_SAMPLED_EVERY_S = 0.1


class Pipeline:
    """A running `lakehouse run all`, whose output lines are written to a file under the home."""

    def __init__(self, settings: Settings, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "lakehouse", "run", "all", *arguments]
        self._environment = os.environ | environment(settings)
        self._file = settings.home / "lines.jsonl"
        self._errors = settings.home / "errors.txt"
        self.start()

    @property
    def processes(self) -> list[psutil.Process]:
        """The Python process and its JVM, as long as they are alive."""
        with suppress(psutil.NoSuchProcess):
            here = psutil.Process(self.popen.pid)
            return [here, *(one for one in here.children() if one.name() == "java")]
        return []

    def lines(self) -> list[dict[str, Any]]:
        """Return the output lines so far."""
        text = self._file.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def await_start(self) -> None:
        """Wait until the pipeline runs. Raises LakehouseError if it does not start."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not any(line["message"].startswith("running") for line in self.lines()):
            if self.popen.poll() is not None or time.monotonic() > deadline:
                raise LakehouseError(f"the pipeline did not start: {self._errors.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill_and_start_again(self) -> None:
        """Kill the processes without warning, and start the pipeline again."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Let the pipeline finish its work and exit."""
        self.popen.send_signal(signal.SIGTERM)
        self.popen.wait(_LEAVE_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the processes if they are alive."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def start(self, *, anew: bool = False) -> None:
        """Start the pipeline. With `anew`, the output of earlier starts is discarded."""
        with self._file.open("wb" if anew else "ab") as lines, self._errors.open("ab") as errors:
            self.popen = subprocess.Popen(
                self._command, stdout=lines, stderr=errors, env=self._environment, start_new_session=True
            )


def environment(settings: Settings) -> dict[str, str]:
    """Return environment variables that make a command use the services and the lake in these settings."""
    return {
        "LAKEHOUSE_HOME": str(settings.home),
        "LAKEHOUSE_LAKE": settings.lake,
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "LAKEHOUSE_REDIS_URL": settings.redis.url.get_secret_value(),
        "LAKEHOUSE_TOPICS": json.dumps(settings.topics),
        "LAKEHOUSE_RUN_LOG_FORMAT": "json",
        "LAKEHOUSE_S3_ENDPOINT": settings.s3.endpoint,
        "LAKEHOUSE_S3_ACCESS_KEY": settings.s3.access_key,
        "LAKEHOUSE_S3_SECRET_KEY": settings.s3.secret_key.get_secret_value(),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }


@contextmanager
def pipeline(settings: Settings, *arguments: str) -> Iterator[Pipeline]:
    """Start `lakehouse run all` with these arguments, and kill it after the block if it still runs."""
    one = Pipeline(settings, arguments)
    try:
        yield one
    finally:
        one.kill()


@dataclass
class Used:
    """Resources that processes used during a block: time, CPU-seconds, and peak resident memory."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0


@contextmanager
def sampled(processes: Callable[[], Sequence[psutil.Process]]) -> Iterator[Used]:
    """Measure processes during the block, including those that start in it.

    If a process ends during the block, up to the last tenth of a second is not counted.
    """
    used, over = Used(), threading.Event()
    before = {one.pid: _cpu_s(one) for one in processes()}
    now, began = dict(before), time.monotonic()

    def sample() -> None:
        with suppress(psutil.NoSuchProcess):
            living = processes()
            used.peak_mb = max(used.peak_mb, sum(one.memory_info().rss for one in living) / 2**20)
            now.update({one.pid: _cpu_s(one) for one in living})

    def keep_sampling() -> None:
        while not over.wait(_SAMPLED_EVERY_S):
            sample()

    thread = threading.Thread(target=keep_sampling, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        used.wall_s = time.monotonic() - began
        over.set()
        thread.join()
        sample()
        used.cpu_s = sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in now.items())


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process. For a JVM, it includes the Python workers, which are its children."""
    if process.name() == "java":
        return cpu_seconds(process)
    times = process.cpu_times()
    return float(times.user + times.system)
