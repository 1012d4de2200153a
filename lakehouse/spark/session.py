"""The only builder of a SparkSession.

Under spark-submit, the properties file and flags define the session. Elsewhere (`lakehouse run`, `lakehouse
sql`, the demo, the tests), the laptop's properties are taken, with this machine's sizes on top.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from lakehouse.errors import ServiceError
from lakehouse.settings import Settings
from lakehouse.spark import internals
from lakehouse.spark.jars import class_archive
from lakehouse.spark.properties import for_laptop

_JVM_TIMEOUT_S = 120.0
_KILL_AGAIN_S = 0.1
_SMALL_LAKE_BYTES = 64 << 20
_BRIEFLY = "-XX:TieredStopAtLevel=1"


def build_session(
    settings: Settings, name: str, *, brief: bool = False, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session for the tables of this project; `options` override everything else.

    `brief`: it will not live long enough for the JVM's optimizing compiler to pay. The second call in a
    process returns the session of the first. Raises ServiceError if the runtime jars are missing, if the JVM
    does not start within two minutes, or if it finds no room in the temporary directory.
    """
    # PySpark would print a failure itself before raising it, as JSON with a stack trace.
    PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = True
    internals.remember_names()
    builder = SparkSession.Builder().appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Outside spark-submit this decides how tasks run Python, whatever spark.pyspark.python says.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for key, value in (_launch_options(settings, brief=brief) | dict(options or {})).items():
            builder = builder.config(key, value)
    with _impatient():
        spark = builder.getOrCreate()
    try:
        internals.load_codecs(spark)
    except Py4JError as error:
        spark.stop()
        raise ServiceError(
            "Spark's JVM could not unpack its libraries; is the disk of the temporary directory full?"
        ) from error
    return spark


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Kill a JVM that does not come up.

    It tells PySpark its port through a file, which PySpark waits for as long as the JVM lives. If the file
    could not be written, because the disk was full for a moment, that would be for ever.
    """
    here = psutil.Process()
    before, over, given_up = set(here.children(recursive=True)), threading.Event(), threading.Event()

    def watch() -> None:
        if over.wait(_JVM_TIMEOUT_S) or internals.is_started():
            return
        given_up.set()
        while not over.wait(_KILL_AGAIN_S):  # shells keep starting processes until they are gone
            # Parents first, so that no shell is left to report a child's end.
            for child in here.children(recursive=True):
                if child not in before:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    except PySparkException as error:
        if not given_up.is_set():
            raise
        raise ServiceError(
            f"Spark's JVM did not come up in {_JVM_TIMEOUT_S:.0f} s; is the disk of the temporary directory "
            "full?"
        ) from error
    finally:
        over.set()
        watching.join()


@contextlib.contextmanager
def start_session(settings: Settings, name: str, *, brief: bool | None = None) -> Iterator[SparkSession]:
    """Build a session and stop it after the block; by default a brief one if the lake is small."""
    spark = build_session(settings, name, brief=is_small(settings.lake) if brief is None else brief)
    try:
        yield spark
    finally:
        spark.stop()


def activate(spark: SparkSession) -> None:
    """Set the thread's active session: Delta works in it."""
    internals.set_active(spark)


def is_small(lake: str) -> bool:
    """Tell whether a lake lies on this machine and is so small that every command is short."""
    scheme, is_url, rest = lake.partition(":/")
    if is_url and scheme != "file":
        return False
    root, found = f"/{rest.lstrip('/')}" if is_url else lake, 0
    for directory, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):  # a running layer removes files
                found += Path(directory, name).stat().st_size
        if found > _SMALL_LAKE_BYTES:
            return False
    return True


def _launch_options(settings: Settings, *, brief: bool) -> dict[str, str]:
    options = for_laptop(archive=class_archive().exists())
    logs = settings.home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    options["spark.driver.extraJavaOptions"] += f' "-Dlakehouse.logs={logs}"'
    if brief:
        options["spark.driver.extraJavaOptions"] += f" {_BRIEFLY}"
    return options | {
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.driver_memory,
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.pyspark.python": sys.executable,
        "spark.sql.warehouse.dir": str(settings.home / "spark-warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
