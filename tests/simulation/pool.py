"""A process in a pool, which runs one story after another, with its own services."""

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
    """Start the services of this process, which run until it ends."""
    _shared.append(_open.enter_context(shared()))
    Finalize(None, _open.close, exitpriority=100)


@dataclass(frozen=True)
class Done:
    """A completed story, shrunk to `best` if it has a difference, and its process's CPU seconds so far."""

    number: int
    told: Ended
    best: Ended | None
    process: int
    cpu_s: float


def cpu_s() -> float:
    """Return the CPU seconds of this process, including its session and services."""
    own = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (own, *own.children(recursive=True)))


def one(seed: int, length: int, form: str | None, shrink: int, number: int) -> Done:
    """Run a story; if it has a difference, shrink it in at most `shrink` runs."""
    (found,) = _shared
    told = run(found, make(seed, number, length, form))
    best = shrunk(found, told, shrink) if told.differences and shrink else None
    return Done(number, told, best, os.getpid(), cpu_s())
