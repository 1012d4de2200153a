"""The errors of streaming queries in words, and which of them a restart cures."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.errors import LakehouseError, first_line
from lakehouse.spark import internals

# A table got a column, a wider type or another property while it was read or written.
_TABLE_CHANGED = re.compile(
    r"\[DELTA_(SCHEMA_CHANGED(_\w+)?|SCHEMA_CHANGE_SINCE_ANALYSIS|METADATA_CHANGED|PROTOCOL_CHANGED)\b"
)
_RECORDS_GONE = re.compile(
    r"data may have been lost|KAFKA_DATA_LOSS|OffsetOutOfRange|UnknownTopicOrPartition|UnknownTopicId"
)
_FILES_GONE = ("FILE_NOT_EXIST", "DELTA_CHANGE_DATA_FILE_NOT_FOUND")


def error_line(error: BaseException) -> str:
    """Return an error's message, without the stack traces that Spark puts into messages."""
    return first_line(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)


def what_of(error: BaseException) -> str:
    """Return an error's message, with its class unless users know it."""
    return (
        error_line(error)
        if isinstance(error, LakehouseError)
        else f"{type(error).__name__}: {error_line(error)}"
    )


def is_table_change(error: BaseException) -> bool:
    """Tell whether the query failed at a table's new schema, with which it can restart."""
    return _TABLE_CHANGED.search(str(error)) is not None


def are_files_gone(error: BaseException) -> bool:
    """Tell whether files of a table's earlier versions are gone: VACUUM has removed them."""
    return any(sign in str(error) for sign in _FILES_GONE)


def is_loss(error: BaseException) -> bool:
    """Tell whether Kafka no longer has what the query was to read."""
    return _RECORDS_GONE.search(str(error)) is not None


def has_ended(spark: SparkSession) -> bool:
    """Tell whether Spark itself has ended: its context was stopped, or its JVM does not answer."""
    try:
        return internals.is_stopped(spark)
    except (Py4JError, OSError):
        return True
