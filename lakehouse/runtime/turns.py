"""Turns that micro-batches take, which limit how many run at a time.

The semaphore is the JVM's: a query waits for it on its own thread there, so `StreamingQuery.stop` can
interrupt the wait like any other. It is fair: turns are granted in the order of requests.

A query chooses its input before its micro-batch begins. If it then had to wait for its turn, its input would
be that much older. So a query can book the turn of its next micro-batch, and choose the input when it has it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_POLL_S = 0.01


class Turns:
    """A number of concurrent turns."""

    def __init__(self, spark: SparkSession, at_once: int) -> None:
        jvm: Any = spark._jvm
        self._turns = jvm.java.util.concurrent.Semaphore(at_once, True)  # noqa: FBT003
        self._seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
        self._at_once = at_once
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._booked: dict[str, float] = {}
        self._claims = 0  # threads that want all turns

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Wait for a turn, unless one is booked under this name, and return it after the block.

        Stopping the query interrupts the wait. Spark recognises an interrupt in Python by a pattern whose
        stack usage grows with the text after it. The original message's Java stack trace would overflow it,
        so a short message replaces it.
        """
        with self._lock:
            is_booked = self._booked.pop(name, None) is not None
        try:
            if not is_booked:
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

    def book(self, name: str, is_over: Callable[[], bool]) -> None:
        """Wait for a turn, in the order of calls, and keep it for `one`; return without one if `is_over`."""
        self._waiting.append(name)
        try:
            while not is_over():
                if self._waiting[0] == name and self._try_booking(name):
                    return
                time.sleep(_POLL_S)
        finally:
            self._waiting.remove(name)

    def _try_booking(self, name: str) -> bool:
        with self._lock:
            # With a timeout, zero too, who waits already comes first.
            if self._claims or not self._turns.tryAcquire(0, self._seconds):
                return False
            self._booked[name] = time.monotonic()
            return True

    def lapse(self, after_s: float) -> None:
        """Return the turns booked so long ago: their queries have found no input."""
        with self._lock:
            for name in [one for one, at in self._booked.items() if time.monotonic() - at >= after_s]:
                del self._booked[name]
                self._turns.release()

    @contextmanager
    def all(self) -> Iterator[None]:
        """Wait until nobody has a turn, and grant none during the block; what is booked lapses."""
        with self._lock:
            self._claims += 1
        try:
            self.lapse(0)
            self._turns.acquire(self._at_once)
            try:
                yield
            finally:
                self._turns.release(self._at_once)
        finally:
            with self._lock:
                self._claims -= 1
