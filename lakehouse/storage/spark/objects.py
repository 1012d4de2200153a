"""Reads and writes single objects of a lake on S3, by Scala code that `lakehouse setup --s3` compiles."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.storage.spark import hadoop, internals

_REFUSED = "FileAlreadyExistsException"
_DENIED = "AccessDeniedException"
_WHY = "reading of a small object"


class ReadOnlyError(Exception):
    """The application may not write there."""


def create(spark: SparkSession, path: str, text: str) -> bool:
    """Create an object if it does not exist, by a conditional write, and tell whether it was created.

    Raises ReadOnlyError if this application may not write there, and Py4JJavaError for other failures.
    """
    try:
        conf = internals.hadoop_configuration(spark)
        _objects(spark).create(hadoop.hadoop_path(spark, path), bytearray(text, "utf-8"), conf)
    except Py4JJavaError as error:
        kind = internals.class_name(error.java_exception)
        if kind == _REFUSED:
            return False
        if kind == _DENIED:
            raise ReadOnlyError(path) from error
        raise
    return True


def modified_ms_of_both(spark: SparkSession, one: str, other: str) -> tuple[int | None, int | None]:
    """Return when two objects were last modified, in ms since the epoch; null for a missing object.

    The requests run in parallel, so both take the time of one.
    """
    places = (hadoop.hadoop_path(spark, one), hadoop.hadoop_path(spark, other))
    found = _objects(spark).modifiedMsOfBoth(*places, internals.hadoop_configuration(spark))
    of_one, of_other = (None if int(ms) < 0 else int(ms) for ms in found.split())
    return of_one, of_other


def read_text(spark: SparkSession, path: str) -> str:
    """Return an object's text in one request; Hadoop would first ask for its size.

    Raises Py4JJavaError, also for a missing object.
    """
    place = hadoop.hadoop_path(spark, path)
    system = hadoop.file_system(spark, place)
    request = system.getRequestFactory().newGetObjectRequestBuilder(system.pathToKey(place)).build()
    return str(system.getS3AInternals().getAmazonS3Client(_WHY).getObjectAsBytes(request).asUtf8String())


def _objects(spark: SparkSession) -> Any:
    return internals.static(spark, "lakehouse.storage.Objects")
