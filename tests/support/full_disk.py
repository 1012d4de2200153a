"""A simulated full disk, for any user: a limit on file sizes that makes every write fail.

The error is `File too large` instead of `No space left on device`.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext


def itself() -> int:
    """Return this process."""
    return 0


def jvm() -> int:
    """Return the process of Spark's JVM."""
    gateway: Any = SparkContext._gateway
    return int(gateway.proc.pid)


@contextmanager
def full(process: int, *, but_for: int = 0) -> Iterator[None]:
    """Limit the size of the files that a process may write during the block to this many bytes."""
    soft, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (but_for, hard))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (soft, hard))


def full_once(
    write: Callable[..., Any], key_of: Callable[..., object], process: Callable[[], int]
) -> Callable[..., Any]:
    """Return a function like `write` that finds the disk full at the first call for each key."""
    met = set[object]()

    def writing(*given: Any, **named: Any) -> Any:
        key = key_of(*given)
        if key in met:
            return write(*given, **named)
        met.add(key)
        with full(process()):
            return write(*given, **named)

    return writing
