"""A process of a pool: it runs one story after the other, with services of its own."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.util import Finalize

import psutil

from tests.simulation.machine import Ended, make, run, shrunk
from tests.simulation.services import Shared, shared

_open = ExitStack()
_shared: list[Shared] = []


def begin() -> None:
    """Start the services of this process, until it ends."""
    _shared.append(_open.enter_context(shared()))
    Finalize(None, _open.close, exitpriority=100)


@dataclass(frozen=True)
class Done:
    """A story that was run, and shrunk to `best` if it differs, and the CPU of its process so far, in s."""

    number: int
    told: Ended
    best: Ended | None
    process: int
    cpu_s: float


def cpu_s() -> float:
    """Return the seconds of CPU of this process, with its session and services."""
    own = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (own, *own.children(recursive=True)))


def one(seed: int, length: int, form: str | None, shrink: int, number: int) -> Done:
    """Run a story; one that differs is shrunk, too, in so many runs."""
    (found,) = _shared
    told = run(found, make(seed, number, length, form))
    best = shrunk(found, told, shrink) if told.differences and shrink else None
    return Done(number, told, best, os.getpid(), cpu_s())
