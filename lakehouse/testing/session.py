"""A Spark session for small data, used by `lakehouse try` and by tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from lakehouse.storage.spark.session import build_session

SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.buffer.pageSize": "1m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Options that make small queries cheap.

A Delta log is read in one task. Plans are not re-optimized between stages. Expressions are interpreted, as
they are in production for few rows, and the JVM uses only its first compiler. Broadcasts, sorts and
aggregations take at least one memory page, which would otherwise be 16 MB.
"""


@contextmanager
def small_session(home: Path, name: str = "lakehouse tests") -> Iterator[SparkSession]:
    """Yield a session for small data, stopped after the block; it can open lakes, and it logs to `home`.

    Raises the errors of `build_session`, such as ServiceError if `lakehouse setup` has not fetched the jars.
    """
    settings = Settings.model_construct(home=home)
    spark = build_session(settings, name, options=SMALL)
    try:
        yield spark
    finally:
        spark.stop()
