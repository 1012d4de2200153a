"""Convert errors from Spark and Delta to short messages."""

from __future__ import annotations

import errno
import os
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.common.errors import LakehouseError, first_line
from lakehouse.storage.spark import internals

_SIZES = "org.apache.spark.network.util.JavaUtils"
_HEAP_FULL = ("java.lang.OutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY")
_FILES_GONE = ("FILE_NOT_EXIST", "DELTA_CHANGE_DATA_FILE_NOT_FOUND", "PATH_NOT_FOUND")
_TASK_FAILED = "Job aborted due to stage failure"
_TRACEBACK = "Traceback (most recent call last):"
_NO_ROOM = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))


def error_line(error: BaseException) -> str:
    """Return an error's message, without the stack traces that Spark includes.

    If the disk is full, the message begins by saying so, because Java reports this only at the end of a stack
    trace. If a task failed, the innermost cause is added. For a Python worker, the innermost cause is the
    exception that the worker raised.
    """
    line = first_line(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)
    if isinstance(error, Py4JJavaError) and _TASK_FAILED in line:
        root = first_line(_root_of(error.java_exception).toString())
        line = line if root in line else f"{line}: {root}"
    raised = None if isinstance(error, LakehouseError) else _raised_in_worker(str(error))
    if raised is not None:
        line = f"a Python worker failed: {raised}"
    why = _no_room(error)
    return line if why is None else f"the disk is full ({why}): {line}"


def _raised_in_worker(text: str) -> str | None:
    """Return the last line of the last Python traceback in a text, or None if there is no traceback."""
    _, found, trace = text.rpartition(_TRACEBACK)
    lines = (line.rstrip() for line in trace.split("\n")[1:])
    return next((line for line in lines if line and not line[0].isspace()), None) if found else None


def _root_of(java: Any) -> Any:
    """Return the innermost cause of a Java exception."""
    while (cause := java.getCause()) is not None:
        java = cause
    return java


def what_of(error: BaseException) -> str:
    """Return an error's message, after its class unless it is a LakehouseError or reports a full disk."""
    if isinstance(error, LakehouseError) or _no_room(error) is not None:
        return error_line(error)
    return f"{type(error).__name__}: {error_line(error)}"


def is_disk_full(error: BaseException) -> bool:
    """Return whether the error means that a disk or a quota is full."""
    return _no_room(error) is not None


def _no_room(error: BaseException) -> str | None:
    """Return the system's message about a full disk, or None if the error has a different cause."""
    if isinstance(error, LakehouseError):
        return None
    text = str(error)
    return next((why for why in _NO_ROOM if why in text), None)


def are_files_gone(error: BaseException) -> bool:
    """Return whether the error was caused by missing files of earlier versions, which VACUUM removes."""
    return any(sign in str(error) for sign in _FILES_GONE)


def is_heap_full(error: BaseException) -> bool:
    """Return whether the error occurred because a JVM ran out of memory."""
    return any(sign in str(error) for sign in _HEAP_FULL)


def heap_of(spark: SparkSession) -> str:
    """Return text that describes the heap that tasks use: the process it belongs to, and its size."""
    return "{} memory {}".format(*_heap(spark))


def heap_bytes(spark: SparkSession) -> int:
    """Return the size in bytes of the heap that tasks use."""
    _, size = _heap(spark)
    return int(internals.static(spark, _SIZES).byteStringAsMb(size)) << 20


def _heap(spark: SparkSession) -> tuple[str, str]:
    whose = "driver" if str(spark.sparkContext.master).startswith("local") else "executor"
    return whose, spark.sparkContext.getConf().get(f"spark.{whose}.memory") or "1g"


def has_ended(spark: SparkSession) -> bool:
    """Return whether Spark itself has ended, because its context was stopped or its JVM does not respond."""
    try:
        return internals.is_stopped(spark)
    except (Py4JError, OSError):
        return True
