"""Measure how long an export waits for each store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")


class Stopwatch:
    """A stopwatch for the time spent on one store while rows are sent to several stores. Not thread-safe."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time spent in the block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - started

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items, and count the time taken to produce each of them."""
        remaining = iter(items)
        while True:
            with self.running():
                try:
                    item = next(remaining)
                except StopIteration:
                    return
            yield item
