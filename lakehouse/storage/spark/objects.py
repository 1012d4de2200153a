"""Hadoop's file objects in the JVM, and single S3 objects, through Scala code that `setup --s3` compiles.

Other modules use `lakehouse.storage.spark.files`, which takes and returns plain values. The functions for
Hadoop's objects do one thing each, and make no decisions.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.storage.spark import internals
from lakehouse.storage.spark.internals import hadoop_configuration, static
from lakehouse.storage.spark.members import FILES


def hadoop_path(spark: SparkSession, path: str) -> Any:
    """Return Hadoop's Path object for a path."""
    return static(spark, "org.apache.hadoop.fs.Path")(path)


def file_system(spark: SparkSession, path: Any) -> Any:
    """Return Hadoop's file system for a Hadoop path."""
    return path.getFileSystem(hadoop_configuration(spark))


def paths_in(spark: SparkSession, statuses: Any) -> str:
    """Return the paths in Hadoop's file statuses as one string, `{a,b}`."""
    paths = static(spark, "org.apache.hadoop.fs.FileUtil").stat2Paths(statuses)
    return str(static(spark, "org.apache.commons.lang3.ArrayUtils").toString(paths))


def copy_file(spark: SparkSession, systems: tuple[Any, ...], paths: tuple[Any, ...]) -> None:
    """Copy a file from one Hadoop file system to another, replacing an existing file."""
    configuration = hadoop_configuration(spark)
    (source, target), (path, copied) = systems, paths
    util = static(spark, "org.apache.hadoop.fs.FileUtil")
    util.copy(source, path, target, copied, False, True, configuration)  # noqa: FBT003 - Java takes no names


def text_in(spark: SparkSession, stream: Any) -> str:
    """Return the rest of a Java stream as text."""
    return str(static(spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))


def atomic_file(spark: SparkSession, path: Any) -> Any:
    """Create a file as Spark does for checkpoints; return a stream that publishes the file when closed."""
    directory = path.getParent()
    configuration = hadoop_configuration(spark)
    manager = static(spark, FILES).create(directory, configuration)
    manager.mkdirs(directory)
    return manager.createAtomic(path, True)  # noqa: FBT003 - overwrite an existing file


_REFUSED = "FileAlreadyExistsException"
_DENIED = "AccessDeniedException"
_WHY = "reading of a small object"


class ReadOnlyError(Exception):
    """The application is not allowed to write to this location."""


def create(spark: SparkSession, path: str, text: str) -> bool:
    """Create an object with a conditional write, and return false if it already exists.

    Raises ReadOnlyError if this application is not allowed to write there, and Py4JJavaError for other
    failures.
    """
    try:
        conf = internals.hadoop_configuration(spark)
        _objects(spark).create(hadoop_path(spark, path), bytearray(text, "utf-8"), conf)
    except Py4JJavaError as error:
        kind = internals.class_name(error.java_exception)
        if kind == _REFUSED:
            return False
        if kind == _DENIED:
            raise ReadOnlyError(path) from error
        raise
    return True


def modified_ms_of_both(spark: SparkSession, one: str, other: str) -> tuple[int | None, int | None]:
    """Return when each of two objects was last modified, in ms since the epoch; None for a missing object.

    The two requests run in parallel.
    """
    places = (hadoop_path(spark, one), hadoop_path(spark, other))
    found = _objects(spark).modifiedMsOfBoth(*places, internals.hadoop_configuration(spark))
    of_one, of_other = (None if int(ms) < 0 else int(ms) for ms in found.split())
    return of_one, of_other


def read_text(spark: SparkSession, path: str) -> str:
    """Return an object's text with one request; Hadoop would first request its size.

    Raises Py4JJavaError for any failure, such as a missing object.
    """
    place = hadoop_path(spark, path)
    system = file_system(spark, place)
    request = system.getRequestFactory().newGetObjectRequestBuilder(system.pathToKey(place)).build()
    return str(system.getS3AInternals().getAmazonS3Client(_WHY).getObjectAsBytes(request).asUtf8String())


def _objects(spark: SparkSession) -> Any:
    return internals.static(spark, "lakehouse.storage.Objects")
