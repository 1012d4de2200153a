"""A Spark session for a few rows at a time: what `lakehouse try` and tests start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from lakehouse.spark.session import build_session

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
"""Options under which few rows cost little.

A log is read in one task, plans are not made anew between their stages, rows are interpreted, as the product
does where they are few, and the first compiler has to do. What a broadcast, a sort or an aggregation takes of
memory at least is a page, which would have 16 MB.
"""


@contextmanager
def small_session(home: Path, name: str = "lakehouse tests") -> Iterator[SparkSession]:
    """Yield such a session, which ends after the block; `home` is for its logs. It can open lakes.

    Raises what `build_session` raises, such as ServiceError if `lakehouse setup` has not fetched the jars.
    """
    settings = Settings.model_construct(home=home)
    spark = build_session(settings, name, options=SMALL)
    try:
        yield spark
    finally:
        spark.stop()
