"""Count costs of steps other than time: Spark jobs, compiled classes, calls to the JVM, retained jobs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

_RELEASE = "m\nd\n"  # py4j releases an object whenever Python's collector gets to it


@dataclass
class Counts:
    """The number of Spark jobs, compiled classes and calls to the JVM."""

    jobs: int = 0
    compiled: int = 0
    calls: int = 0


@contextmanager
def counted(spark: SparkSession) -> Iterator[Counts]:
    """Count during the block, in the whole application."""
    counts, before, calls = Counts(), _so_far(spark), 0
    connection: Any = type(spark.sparkContext._gateway._gateway_client)  # type: ignore[union-attr]
    send = connection.send_command

    def counting(self: Any, command: str, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += not command.startswith(_RELEASE)
        return send(self, command, *arguments, **named)

    with patch.object(connection, "send_command", counting):
        yield counts
    jobs, compiled = _so_far(spark)
    counts.jobs, counts.compiled, counts.calls = jobs - before[0], compiled - before[1], calls


def jobs_kept(spark: SparkSession, before: Collection[str] = (), patience_s: float = 10) -> list[str]:
    """Return the call sites of the jobs that the driver still keeps, except those in `before`.

    The driver keeps a job with its plans and broadcasts, and releases it soon after its query ends. No query
    may be running.
    """
    patient_until = time.monotonic() + patience_s
    while (kept := _jobs_kept(spark)) and time.monotonic() < patient_until:
        if set(kept) <= set(before):
            break
        time.sleep(0.05)
    return sorted(set(kept) - set(before))


def _jobs_kept(spark: SparkSession) -> list[str]:
    context: Any = spark.sparkContext
    of_queries, found = context._jsc.sc().dagScheduler().activeQueryToJobs().elements(), list[Any]()
    while of_queries.hasMoreElements():
        found += list(of_queries.nextElement())
    return [f"{job.jobId()}: {job.callSite().shortForm()}" for job in found]


def _so_far(spark: SparkSession) -> tuple[int, int]:
    context: Any = spark.sparkContext
    metrics = context._jvm.org.apache.spark.metrics.source.CodegenMetrics
    jobs = context._jsc.sc().dagScheduler().numTotalJobs()
    return int(jobs), int(metrics.METRIC_COMPILATION_TIME().getCount())
