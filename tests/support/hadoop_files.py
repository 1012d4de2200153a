"""Files in the form in which Hadoop writes them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def hadoop_writes(spark: SparkSession, path: str, text: str) -> None:
    """Write a file, and Hadoop's checksum file for it."""
    jvm: Any = spark._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    stream = where.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).create(where)
    stream.write(bytearray(text, "utf-8"))
    stream.close()
