"""The use of a JVM's heap, read from its garbage collection log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PAUSE = re.compile(r"Pause (\w+).* (\d+)M->(\d+)M\((\d+)M\) ([0-9.]+)ms")
_OPTIONS = "JDK_JAVA_OPTIONS"


@dataclass(frozen=True)
class Collection:
    """A garbage collection: heap use before and after, the heap's size, and the pause of all threads."""

    is_full: bool
    before_mb: int
    after_mb: int
    committed_mb: int
    pause_s: float


@dataclass(frozen=True)
class Heap:
    """A summary of garbage collections: the greatest heap use before and after any of them, and their time.

    After a full collection, all remaining memory is in use. After any other collection, some may be garbage.
    """

    before_mb: int
    after_mb: int
    full: int
    pause_s: float


def collections(text: str) -> list[Collection]:
    """Return the garbage collections in a log that was written with -Xlog:gc."""
    return [
        Collection(kind == "Full", int(before), int(after), int(committed), float(ms) / 1000)
        for kind, before, after, committed, ms in _PAUSE.findall(text)
    ]


def summed(found: Sequence[Collection]) -> Heap:
    """Return the summary of several garbage collections."""
    return Heap(
        max((one.before_mb for one in found), default=0),
        max((one.after_mb for one in found), default=0),
        sum(one.is_full for one in found),
        sum(one.pause_s for one in found),
    )


class HeapLog:
    """The garbage collections of one process from now on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begin = file.stat().st_size if file.exists() else 0

    def heap(self) -> Heap:
        """Return the summary of the garbage collections since this object was created."""
        return summed(collections(self._file.read_bytes()[self._begin :].decode()))


def heap_of(directory: Path) -> Heap:
    """Return the summary of the garbage collections that all JVMs have logged in a directory."""
    return summed([one for log in directory.glob("gc-*.log") for one in collections(log.read_text())])


def log_of(directory: Path, pid: int) -> Path:
    """Return the log file of a JVM that started within `logged`."""
    return directory / f"gc-{pid}.log"


def option(directory: Path) -> str:
    """Return the JVM option that logs garbage collections."""
    return f"-Xlog:gc:file={directory}/gc-%p.log"


@contextmanager
def logged(directory: Path) -> Iterator[None]:
    """Make JVMs that are started during the block, directly or by children, log garbage collections."""
    before = os.environ.get(_OPTIONS)
    directory.mkdir(parents=True, exist_ok=True)
    os.environ[_OPTIONS] = option(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_OPTIONS]
        else:
            os.environ[_OPTIONS] = before
