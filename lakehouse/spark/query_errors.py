"""Errors of Spark and Delta in words."""

from __future__ import annotations

import errno
import os
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from lakehouse.errors import LakehouseError, first_line
from lakehouse.spark import internals

_SIZES = "org.apache.spark.network.util.JavaUtils"
_HEAP_FULL = ("java.lang.OutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY")
_FILES_GONE = ("FILE_NOT_EXIST", "DELTA_CHANGE_DATA_FILE_NOT_FOUND", "PATH_NOT_FOUND")
_TASK_FAILED = "Job aborted due to stage failure"
_TRACEBACK = "Traceback (most recent call last):"
_NO_ROOM = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))


def error_line(error: BaseException) -> str:
    """Return an error's message, without the stack traces that Spark puts into messages.

    That a disk is full comes first: Java says so only at the end of those. Where Spark says that a task
    failed, the innermost cause is added. Of a Python worker it is what it has raised.
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
    """Return the line with which the last traceback of Python ends in a text; null where there is none."""
    _, found, trace = text.rpartition(_TRACEBACK)
    lines = (line.rstrip() for line in trace.split("\n")[1:])
    return next((line for line in lines if line and not line[0].isspace()), None) if found else None


def _root_of(java: Any) -> Any:
    """Return the innermost cause of an exception of Java's."""
    while (cause := java.getCause()) is not None:
        java = cause
    return java


def what_of(error: BaseException) -> str:
    """Return an error's message, with its class unless users know it."""
    if isinstance(error, LakehouseError) or _no_room(error) is not None:
        return error_line(error)
    return f"{type(error).__name__}: {error_line(error)}"


def is_disk_full(error: BaseException) -> bool:
    """Tell whether something could not be written because a disk is full, or a quota."""
    return _no_room(error) is not None


def _no_room(error: BaseException) -> str | None:
    """Return why there was no room to write, null if that was not the reason."""
    if isinstance(error, LakehouseError):
        return None
    text = str(error)
    return next((why for why in _NO_ROOM if why in text), None)


def are_files_gone(error: BaseException) -> bool:
    """Tell whether files of a table's earlier versions are gone: VACUUM has removed them."""
    return any(sign in str(error) for sign in _FILES_GONE)


def is_heap_full(error: BaseException) -> bool:
    """Return whether a failure was a JVM's lack of memory."""
    return any(sign in str(error) for sign in _HEAP_FULL)


def heap_of(spark: SparkSession) -> str:
    """Return whose heap executes tasks, and its size, in words."""
    return "{} memory {}".format(*_heap(spark))


def heap_bytes(spark: SparkSession) -> int:
    """Return the size of a heap that executes tasks."""
    _, size = _heap(spark)
    return int(internals.static(spark, _SIZES).byteStringAsMb(size)) << 20


def _heap(spark: SparkSession) -> tuple[str, str]:
    whose = "driver" if str(spark.sparkContext.master).startswith("local") else "executor"
    return whose, spark.sparkContext.getConf().get(f"spark.{whose}.memory") or "1g"


def has_ended(spark: SparkSession) -> bool:
    """Tell whether Spark itself has ended: its context was stopped, or its JVM does not answer."""
    try:
        return internals.is_stopped(spark)
    except (Py4JError, OSError):
        return True
