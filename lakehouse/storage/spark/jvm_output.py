"""Remove three harmless warnings that Spark's JVM prints to standard error."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lakehouse.common.terminal import print_above

_HARMLESS = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    # Java 24 and later: Spark opens a package that no longer exists.
    b"WARNING: package sun.security.action not in java.base",
    # Java 12 and later: from DataSketches, the library for percentiles; Spark keeps sketches on the heap.
    (
        b"Warning: Java versions > Java 11 can only operate in restricted mode "
        b"where no off-heap operations are allowed!"
    ),
)
"""Warnings that Spark and its libraries cause, and that no option suppresses."""
_STANDARD_ERROR = 2
_PATIENCE_S = 5.0


@contextmanager
def filtered() -> Iterator[int]:
    """Yield a file descriptor to use as the standard error of a process that the block starts.

    While both processes run, the output is copied line by line to this process's standard error. If the block
    fails because the started process ended, that process's last lines are written before the exception is
    raised.
    """
    read_end, write_end = os.pipe()
    relay = threading.Thread(target=_relay, args=(read_end,), name="standard error of Spark", daemon=True)
    relay.start()
    try:
        yield write_end
    except BaseException:
        os.close(write_end)
        relay.join(_PATIENCE_S)
        raise
    os.close(write_end)


def _relay(read_end: int) -> None:
    """Copy lines, except these warnings, until the last writer closes its end of the pipe."""
    rest = b""
    while piece := os.read(read_end, 1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line not in _HARMLESS:
                _write(line + b"\n")
    _write(rest)
    os.close(read_end)


def _write(line: bytes) -> None:
    """Write one line to standard error, with its line end if it has one."""
    with suppress(OSError):  # nobody reads the output anymore; the started process must not block
        if not line or print_above(line.decode(errors="replace").removesuffix("\n")):
            return
        while line:
            line = line[os.write(_STANDARD_ERROR, line) :]
