"""Standby: among live runs of the same layers and streams, one is active and the others stand by.

Each run announces itself with an empty file in the lake, which it renews twice a second (`Terms`):

    <lake>/_lakehouse_runs/<layers and streams>/<until when>-<standby or active>_<since>_<who>

    standby    waits while another run is active or has been on standby for longer
    active     works until the user stops it or it must yield to another active run. A run that failed to
               renew its term in time yields. If both runs renewed theirs, the one that started later yields

Standby only avoids duplicate work; correctness does not depend on it. Two runs can briefly be active at the
same time if a process was suspended or a file system shows new files late. As with any two concurrent runs,
only one of their commits for a micro-batch then succeeds, and Kafka fences the older producer.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from py4j.protocol import Py4JError

from lakehouse.common.errors import LakehouseError
from lakehouse.engine.runtime.signals import Stop
from lakehouse.storage.tables import Lake
from lakehouse.storage.tables.terms import Terms

TERM_S = 2.0
DIRECTORY = "_lakehouse_runs"
_RENEWED_EVERY_S = TERM_S / 4
_LOOK_EVERY_S = 0.2
_ACTIVE, _STANDBY = "active_", "standby_"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Doing:
    """What a run does: `work` while it is active, and `warm_up` once, if it must stand by."""

    work: Callable[[Stop], None]
    warm_up: Callable[[], None]
    on_notice: Callable[[str], None]


def take_turns(lake: Lake, scope: Collection[str], stop: Stop, doing: Doing) -> None:
    """Stand by until no other run with the same scope is active, then work; repeat if another run takes over.

    `scope` contains the names of the layers and streams. `work` is called with a `Stop`, which is requested
    by the user, or when another run takes over. Returns when `work` returns without a takeover, or when the
    user stops the run. An error in `work` ends the run, unless another run has taken over.
    """
    directory = f"{lake.root}/{DIRECTORY}/{'+'.join(sorted(scope))}"
    run = _Run(Terms(lake.spark, directory, TERM_S), doing)
    with run:
        while (turn := run.await_turn(stop)) is not None:
            try:
                doing.work(turn)
            except LakehouseError:  # after a takeover, positions have changed and work may fail
                if not turn.event.is_set():
                    raise
            if not turn.event.is_set() or stop.requested:
                return
            doing.on_notice("another run is active; standing by")


class _Run:
    """A run whose thread renews its term, and ends its turn if another run of the same scope takes over."""

    def __init__(self, terms: Terms, doing: Doing) -> None:
        who = re.sub(r"\W", "_", f"{socket.gethostname()}_{os.getpid()}")
        self._name = f"{time.time_ns():020d}_{who}"
        self._terms = terms
        self._doing = doing
        self._is_warm = False
        self._over = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="turns", daemon=True)
        self._lock = threading.Lock()
        self._turn: Stop | None = None
        self._renewed_at = time.monotonic()

    def __enter__(self) -> None:
        self._say()
        self._terms.forget_the_dead()
        self._renewal.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._renewal.join()
        for kind in (_ACTIVE, _STANDBY):
            self._terms.forget(kind + self._name)

    def await_turn(self, stop: Stop) -> Stop | None:
        """Wait for this run's turn and announce it. Return its stop request, or None if the user stops."""
        self._become(None)
        told = ""
        while not stop.requested:
            others = self._others()
            active = sorted(name for kind, name in others if kind == _ACTIVE)
            before = sorted(name for kind, name in others if kind == _STANDBY and name < self._name)
            if not active and not before:
                turn = Stop(also=stop)
                self._become(turn)
                return turn
            what = f"standing by: {_shown((active or before)[0])} {'is active' if active else 'is next'}"
            if what != told:
                self._doing.on_notice(what)
            told = what
            if not self._is_warm:
                self._doing.warm_up()
            self._is_warm = True
            stop.event.wait(_LOOK_EVERY_S)
        return None

    @property
    def _holder(self) -> str:
        return (_STANDBY if self._turn is None else _ACTIVE) + self._name

    def _become(self, turn: Stop | None) -> None:
        """Begin a turn, or stand by if `turn` is None."""
        with self._lock:
            before, self._turn = self._holder, turn
            self._say()
            if before != self._holder:
                self._terms.forget(before)

    def _others(self) -> set[tuple[str, str]]:
        found = (name.partition("_") for name in self._terms.alive())
        return {(f"{kind}_", name) for kind, _, name in found if name != self._name}

    def _say(self) -> None:
        self._terms.renew(self._holder)
        self._renewed_at = time.monotonic()

    def _renew(self) -> None:
        while not self._over.wait(_RENEWED_EVERY_S):
            try:
                with self._lock:
                    if self._turn is not None and not self._turn.event.is_set():
                        self._look_after(self._turn)
                    self._say()
            except (OSError, Py4JError):  # for example, a full disk; the next renewal may succeed
                log.warning("the run's term could not be renewed", exc_info=True)

    def _look_after(self, turn: Stop) -> None:
        """End the turn if another run is active, unless this run started earlier and renewed in time."""
        was_away = time.monotonic() - self._renewed_at > TERM_S
        active = [name for kind, name in self._others() if kind == _ACTIVE]
        if active and (was_away or min(active) < self._name):
            turn.request()


def _shown(name: str) -> str:
    """Return a description of a run: its process and host."""
    _, _, where = name.partition("_")
    host, _, pid = where.rpartition("_")
    return f"process {pid} on {host}"
