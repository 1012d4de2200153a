"""Checkpoints of streaming queries: where they lie, and how far a query has come.

A checkpoint has a file `offsets/<n>` for every micro-batch that was planned, with the place that each source
will be read up to, and a file `commits/<n>` for every one that is done.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession


def path_of(lake: str, query: str) -> str:
    """Return where the checkpoint of a query lies."""
    return f"{lake.rstrip('/')}/_checkpoints/{query}"


def exists(spark: SparkSession, checkpoint: str) -> bool:
    """Tell whether a query has ever started with this checkpoint."""
    return bool(_file_system(spark, checkpoint).exists(_path(spark, f"{checkpoint}/metadata")))


def read_versions(spark: SparkSession, checkpoint: str) -> list[int] | None:
    """Return for each Delta source the last version of which every row is in a finished micro-batch.

    Null where there is no such version: before the first micro-batch is done, and while a query that began
    with a table that had rows is still reading those.
    """
    if not exists(spark, checkpoint):
        return None
    done = [int(name) for name in _names(spark, f"{checkpoint}/commits") if name.isdecimal()]
    if not done:
        return None
    lines = [row.value for row in spark.read.text(f"{checkpoint}/offsets/{max(done)}").collect()]
    sources = [json.loads(line) for line in lines[2:]]
    if any(source["isStartingVersion"] for source in sources):
        return None
    # The place is the first version with rows that may not have been read.
    return [int(source["reservoirVersion"]) - 1 for source in sources]


def _names(spark: SparkSession, directory: str) -> list[str]:
    files = _file_system(spark, directory)
    if not files.exists(_path(spark, directory)):
        return []
    return [str(status.getPath().getName()) for status in files.listStatus(_path(spark, directory))]


def _file_system(spark: SparkSession, path: str) -> Any:
    return _path(spark, path).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def _path(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(path)
