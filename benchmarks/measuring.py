"""What the benchmarks measure with: CPU-seconds of processes, and latency from produce to Redis."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil
import redis

from lakehouse.sinks import latest_key


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that a process has used, user and system; a JVM's with its Python workers'."""
    total = 0.0
    for one in (process, *_workers(process)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _workers(process: psutil.Process) -> list[psutil.Process]:
    """Return the Python workers under a JVM; none for any other process."""
    return process.children(recursive=True) if process.name() == "java" else []


def application() -> list[psutil.Process]:
    """Return the processes of the Spark application that runs here: this one and its JVM."""
    here = psutil.Process()
    jvm = next(child for child in here.children() if "org.apache.spark.deploy.SparkSubmit" in child.cmdline())
    return [here, jvm]


@dataclass
class Usage:
    """Wall and CPU time of a stretch of work."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def used_by(*processes: psutil.Process) -> Iterator[Usage]:
    """Measure what the processes use inside the block."""
    usage = Usage()
    before, began = sum(map(cpu_seconds, processes)), time.monotonic()
    yield usage
    usage.wall_s = time.monotonic() - began
    usage.cpu_s = sum(map(cpu_seconds, processes)) - before


@dataclass
class Latencies:
    """Latency of events from their time to the first sight of a row in Redis that counts them.

    The producer gives events their due time as event time, in order. A row says how many events it counts
    and the time of the last; when a poll finds it with more, the new ones are taken to lie evenly between
    the two last event times. What they waited is sampled at the ends and between.
    """

    url: str
    table: str
    groups: Sequence[str]
    poll_s: float = 0.1
    samples: list[tuple[float, int]] = field(default_factory=list)
    events: int = 0
    timeline: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    _seen: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)

    @contextmanager
    def observed(self) -> Iterator[Latencies]:
        """Poll Redis in the background inside the block."""
        done = threading.Event()
        thread = threading.Thread(target=self._observe, args=(done,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join()

    def percentile_s(self, share: float) -> float:
        """Return the latency that this share of the events did not exceed; NaN before the first event."""
        ordered = sorted(self.samples)
        rank, passed = share * sum(weight for _, weight in ordered), 0
        for latency, weight in ordered:
            passed += weight
            if passed >= rank:
                return latency
        return float("nan")

    def _observe(self, done: threading.Event) -> None:
        client = redis.Redis.from_url(self.url, decode_responses=True)
        began = time.time()
        while not done.wait(self.poll_s):
            for group in self.groups:
                found = client.hgetall(latest_key(self.table, group))
                now = time.time()
                for member, row in found.items():
                    self._take(group, str(member), json.loads(row), now, int(now - began) // 30)

    def _take(self, group: str, member: str, row: dict[str, int], now: float, slot: int) -> None:
        key = (group, member, row["windowStart"])
        count, last = row["count"], row["lastEventTime"]
        before_count, before_last = self._seen.get(key, (0, row["windowStart"]))
        if count <= before_count:
            return
        self._seen[key] = (count, last)
        new = count - before_count
        self.events += new
        for part in range(5):
            event_ms = last - (last - before_last) * part / 4
            latency = now - event_ms / 1000
            self.samples.append((latency, new))
            self.timeline[slot] = max(self.timeline[slot], latency)
