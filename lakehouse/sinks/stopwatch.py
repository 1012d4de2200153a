"""Measures how long an export waits for each store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")


class Stopwatch:
    """Adds up the seconds spent on one store, while rows also go to others. For one thread at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - started

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items, and count the time that producing each takes."""
        remaining = iter(items)
        while True:
            with self.running():
                try:
                    item = next(remaining)
                except StopIteration:
                    return
            yield item
