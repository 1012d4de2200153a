"""Turns that micro-batches take, so that no more of them work at a time than shall.

The semaphore is the JVM's, because a query waits for it on its own thread there, and `StreamingQuery.stop`
can then interrupt the wait as it interrupts any other. It is fair: who asks first is next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class Turns:
    """So many turns at once."""

    def __init__(self, spark: SparkSession, at_once: int) -> None:
        jvm: Any = spark._jvm
        self._turns = jvm.java.util.concurrent.Semaphore(at_once, True)  # noqa: FBT003
        self._at_once = at_once

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a turn, and give it back.

        A stop of the query interrupts the wait, and Spark is told so in few words: it recognises an interrupt
        in Python by a pattern whose cost in stack grows with the text after it, and the Java stack trace of
        the original message is enough to overflow it.
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
        """Wait until nobody has a turn, and let nobody have one meanwhile."""
        self._turns.acquire(self._at_once)
        try:
            yield
        finally:
            self._turns.release(self._at_once)
