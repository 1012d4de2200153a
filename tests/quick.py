"""Spark as tests of a few rows want it: nothing compiled, nothing distributed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_OPTIONS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Let plans be interpreted for the length of the block, also those of queries that start in it."""
    before = {name: spark.conf.get(name) or "" for name in _OPTIONS}
    try:
        for name, value in _OPTIONS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
