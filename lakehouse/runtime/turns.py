"""Turns that micro-batches take, which limit how many run at a time.

The semaphore is the JVM's: a query waits for it on its own thread there, so `StreamingQuery.stop` can
interrupt the wait like any other. It is fair: turns are granted in the order of requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class Turns:
    """A number of concurrent turns."""

    def __init__(self, spark: SparkSession, at_once: int) -> None:
        jvm: Any = spark._jvm
        self._turns = jvm.java.util.concurrent.Semaphore(at_once, True)  # noqa: FBT003
        self._at_once = at_once

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a turn, and return it after the block.

        Stopping the query interrupts the wait. Spark recognises an interrupt in Python by a pattern whose
        stack usage grows with the text after it. The original message's Java stack trace would overflow it,
        so a short message replaces it.
        """
        try:
            self._turns.acquire()
        except Py4JJavaError as error:
            if "InterruptedException" not in str(error.java_exception):
                raise
            raise InterruptedError(
                "py4j.protocol.Py4JJavaError: An error occurred while calling acquire: "
                "java.lang.InterruptedException"
            ) from None
        try:
            yield
        finally:
            self._turns.release()

    @contextmanager
    def all(self) -> Iterator[None]:
        """Wait until nobody has a turn, and grant none during the block."""
        self._turns.acquire(self._at_once)
        try:
            yield
        finally:
            self._turns.release(self._at_once)
