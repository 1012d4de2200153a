"""A Spark session for small data, for `lakehouse try` and for tests."""

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

A Delta log is read in one task. Adaptive execution is off. Expressions are interpreted, as in production for
small inputs, and the JVM uses only its C1 compiler. Broadcasts, sorts and aggregations each take at least one
memory page, whose default size would be 16 MB.
"""


@contextmanager
def small_session(home: Path, name: str = "lakehouse tests") -> Iterator[SparkSession]:
    """Yield a session for small data that can open lakes, and stop it after the block. It logs to `home`.

    Raises the same errors as `build_session`, such as ServiceError if `lakehouse setup` has not fetched the
    jars.
    """
    settings = Settings.model_construct(home=home)
    spark = build_session(settings, name, options=SMALL)
    try:
        yield spark
    finally:
        spark.stop()
