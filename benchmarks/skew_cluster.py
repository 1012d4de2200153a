"""Runs of jobs/pipeline.py on a standalone cluster on this machine, with the heap use of its processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.applications import Used, environment, sampled
from benchmarks.heap import Heap, heap_of, logged, option
from lakehouse.common.errors import LakehouseError
from lakehouse.settings import Settings
from tests.support.cluster import Cluster

EXECUTORS = 2
_ROOT = Path(__file__).parents[1]
_PROPERTIES = _ROOT / ".venv/share/lakehouse/cluster.properties"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Submitted:
    """The resources of all processes of a job, and the heap use of its driver and of the fuller executor."""

    used: Used
    driver: Heap
    executors: Heap


def submit(stream: str, settings: Settings, cluster: Cluster, executor_memory: str) -> Submitted:
    """Catch up with a stream. Raises LakehouseError if the job fails.

    Each of two executors has one core. The driver has the heap in the settings.
    """
    lake = Path(settings.lake)
    heaps = {who: lake.with_name(f"{lake.name}-{who}") for who in ("driver", "executors")}
    heaps["executors"].mkdir()
    options = {
        "spark.driver.host": cluster.driver_host,
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.executor.memory": executor_memory,
        "spark.executor.cores": "1",
        "spark.cores.max": str(EXECUTORS),
        "spark.sql.shuffle.partitions": str(EXECUTORS),
        "spark.executor.extraJavaOptions": f"-Duser.timezone=UTC {option(heaps['executors'])}",
        "spark.log.level": "ERROR",
    }
    conf = [word for key, value in options.items() for word in ("--conf", f"{key}={value}")]
    where = ["--master", cluster.master, "--properties-file", str(_PROPERTIES)]
    job = [str(_ROOT / "jobs/pipeline.py"), "--stream", stream, "--trigger", "available-now"]
    here = Path(sys.executable).parent
    command = [str(here / "spark-submit"), *where, *conf, *job]
    with logged(heaps["driver"]):
        own = os.environ | cluster.environment | environment(settings)
        own |= {"LAKEHOUSE_TOPICS": json.dumps(settings.topics)}
        # spark-submit needs a Python that has pyspark.
        own |= {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    errors = heaps["driver"] / "errors.txt"
    with (
        errors.open("wb") as said,
        psutil.Popen(command, env=own, stdout=said, stderr=said) as process,
        sampled(lambda: [process, *_executors()]) as used,
    ):
        code = process.wait()
    if code:
        raise LakehouseError(f"{stream}: the job ended with {code}: {errors.read_text()[-2000:]}")
    return Submitted(used, heap_of(heaps["driver"]), heap_of(heaps["executors"]))


def _executors() -> Iterator[psutil.Process]:
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if _EXECUTOR in one.cmdline():
                yield one
