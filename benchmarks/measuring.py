"""Measurements of the CPU-seconds that processes use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil


def cpu_seconds(process: psutil.Process) -> float:
    """Return a process's CPU time, user and system. For a JVM, it includes its Python workers."""
    total = 0.0
    for one in (process, *_workers(process)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _workers(process: psutil.Process) -> list[psutil.Process]:
    """Return the Python workers below a JVM, or none for any other process."""
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True) if process.name() == "java" else []
    return []


def application() -> list[psutil.Process]:
    """Return the processes of the Spark application that runs here: this process and its JVM."""
    here = psutil.Process()
    jvm = next(child for child in here.children() if "org.apache.spark.deploy.SparkSubmit" in child.cmdline())
    return [here, jvm]


@dataclass
class Usage:
    """Wall time and CPU time of some work."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def used_by(*processes: psutil.Process) -> Iterator[Usage]:
    """Measure the resources that the processes use during the block."""
    usage = Usage()
    before, began = sum(map(cpu_seconds, processes)), time.monotonic()
    yield usage
    usage.wall_s = time.monotonic() - began
    usage.cpu_s = sum(map(cpu_seconds, processes)) - before
