"""The pipeline as users start it, in a process of its own, and the resources that applications use."""

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
    """A running `lakehouse run all`; its output lines are kept in a file under the home."""

    def __init__(self, settings: Settings, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "lakehouse", "run", "all", *arguments]
        self._environment = os.environ | environment(settings)
        self._file = settings.home / "lines.jsonl"
        self._errors = settings.home / "errors.txt"
        self.start()

    @property
    def processes(self) -> list[psutil.Process]:
        """Python and its JVM, while they live."""
        with suppress(psutil.NoSuchProcess):
            here = psutil.Process(self.popen.pid)
            return [here, *(one for one in here.children() if one.name() == "java")]
        return []

    def lines(self) -> list[dict[str, Any]]:
        """Return its output so far."""
        text = self._file.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def await_start(self) -> None:
        """Wait until it runs; raises LakehouseError if it does not come up."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not any(line["message"].startswith("running") for line in self.lines()):
            if self.popen.poll() is not None or time.monotonic() > deadline:
                raise LakehouseError(f"the pipeline did not come up: {self._errors.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill_and_start_again(self) -> None:
        """Kill its processes at once, and restart it."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Let it finish and exit."""
        self.popen.send_signal(signal.SIGTERM)
        self.popen.wait(_LEAVE_TIMEOUT_S)

    def kill(self) -> None:
        """Kill its processes, if they live."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def start(self, *, anew: bool = False) -> None:
        """Start it; its lines follow those of an earlier start, unless it is `anew`."""
        with self._file.open("wb" if anew else "ab") as lines, self._errors.open("ab") as errors:
            self.popen = subprocess.Popen(
                self._command, stdout=lines, stderr=errors, env=self._environment, start_new_session=True
            )


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment that points a command of the project to the settings' services and lake."""
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
    """Start `lakehouse run all` with these arguments; it is killed at the end unless it has exited."""
    one = Pipeline(settings, arguments)
    try:
        yield one
    finally:
        one.kill()


@dataclass
class Used:
    """What processes have used during a block: time, CPU-seconds, and peak resident memory."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0


@contextmanager
def sampled(processes: Callable[[], Sequence[psutil.Process]]) -> Iterator[Used]:
    """Measure processes inside the block, those that start in it too.

    Processes that end in it count up to a tenth of a second before.
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
    """Return the CPU time of a JVM with its Python workers, or of any other process without its children."""
    if process.name() == "java":
        return cpu_seconds(process)
    times = process.cpu_times()
    return float(times.user + times.system)
