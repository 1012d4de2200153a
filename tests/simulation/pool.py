"""A process of a pool: it runs one story after the other, with services of its own."""

from __future__ import annotations

from contextlib import ExitStack
from multiprocessing.util import Finalize

from tests.simulation.machine import Ended, make, run, shrunk
from tests.simulation.services import Shared, shared

_open = ExitStack()
_shared: list[Shared] = []


def begin() -> None:
    """Start the services of this process, until it ends."""
    _shared.append(_open.enter_context(shared()))
    Finalize(None, _open.close, exitpriority=100)


def one(
    seed: int, length: int, form: str | None, shrink: int, number: int
) -> tuple[int, Ended, Ended | None]:
    """Run a story; one that differs is shrunk, too, in so many runs."""
    (found,) = _shared
    told = run(found, make(seed, number, length, form))
    best = shrunk(found, told, shrink) if told.differences and shrink else None
    return number, told, best
