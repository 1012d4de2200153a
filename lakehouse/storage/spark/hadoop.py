"""Files as Hadoop's objects in the JVM; `lakehouse.storage.spark.files` takes and returns plain values.

Each function does one thing and makes no decisions.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from lakehouse.storage.spark.internals import hadoop_configuration, static
from lakehouse.storage.spark.members import FILES


def hadoop_path(spark: SparkSession, path: str) -> Any:
    """Return Hadoop's object for a path."""
    return static(spark, "org.apache.hadoop.fs.Path")(path)


def file_system(spark: SparkSession, path: Any) -> Any:
    """Return Hadoop's file system of a Hadoop path."""
    return path.getFileSystem(hadoop_configuration(spark))


def paths_in(spark: SparkSession, statuses: Any) -> str:
    """Return the paths of Hadoop's file statuses as one text, `{a,b}`."""
    paths = static(spark, "org.apache.hadoop.fs.FileUtil").stat2Paths(statuses)
    return str(static(spark, "org.apache.commons.lang3.ArrayUtils").toString(paths))


def copy_file(spark: SparkSession, systems: tuple[Any, ...], paths: tuple[Any, ...]) -> None:
    """Copy a file from one Hadoop file system to another, over an existing one."""
    configuration = hadoop_configuration(spark)
    (source, target), (path, copied) = systems, paths
    util = static(spark, "org.apache.hadoop.fs.FileUtil")
    util.copy(source, path, target, copied, False, True, configuration)  # noqa: FBT003 - Java takes no names


def text_in(spark: SparkSession, stream: Any) -> str:
    """Return the rest of a Java stream as text."""
    return str(static(spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))


def atomic_file(spark: SparkSession, path: Any) -> Any:
    """Create a file as Spark does for checkpoints, and return its stream; closing it publishes the file."""
    directory = path.getParent()
    configuration = hadoop_configuration(spark)
    manager = static(spark, FILES).create(directory, configuration)
    manager.mkdirs(directory)
    return manager.createAtomic(path, True)  # noqa: FBT003 - over an existing one
