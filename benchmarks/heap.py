"""What a JVM's heap holds, from its log of collections."""

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
    """A collection: what was used before and after it, of how much, and how long all threads stood still."""

    is_full: bool
    before_mb: int
    after_mb: int
    committed_mb: int
    pause_s: float


@dataclass(frozen=True)
class Heap:
    """What some collections say: the most that was used before one and after one, and their time.

    What is left after a full one is in use. What is left after another one may be garbage, too.
    """

    before_mb: int
    after_mb: int
    full: int
    pause_s: float


def collections(text: str) -> list[Collection]:
    """Return the collections of a log that was written with -Xlog:gc."""
    return [
        Collection(kind == "Full", int(before), int(after), int(committed), float(ms) / 1000)
        for kind, before, after, committed, ms in _PAUSE.findall(text)
    ]


def summed(found: Sequence[Collection]) -> Heap:
    """Return what several collections say together."""
    return Heap(
        max((one.before_mb for one in found), default=0),
        max((one.after_mb for one in found), default=0),
        sum(one.is_full for one in found),
        sum(one.pause_s for one in found),
    )


class HeapLog:
    """The collections of one process, from now on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begin = file.stat().st_size if file.exists() else 0

    def heap(self) -> Heap:
        """Return what the collections since then say."""
        return summed(collections(self._file.read_bytes()[self._begin :].decode()))


def heap_of(directory: Path) -> Heap:
    """Return what the collections of all JVMs say that noted them there; the most of any one of them."""
    return summed([one for log in directory.glob("gc-*.log") for one in collections(log.read_text())])


def log_of(directory: Path, pid: int) -> Path:
    """Return the file in which a JVM that started under `logged` notes its collections."""
    return directory / f"gc-{pid}.log"


def option(directory: Path) -> str:
    """Return the option that makes a JVM do so."""
    return f"-Xlog:gc:file={directory}/gc-%p.log"


@contextmanager
def logged(directory: Path) -> Iterator[None]:
    """Make the JVMs that start inside the block, and their children's, note their collections."""
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
