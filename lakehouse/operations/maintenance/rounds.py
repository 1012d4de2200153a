"""Maintenance during a live run, alongside its micro-batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from lakehouse.engine.runtime.loop import Clock
from lakehouse.engine.runtime.schedule import Alone
from lakehouse.operations.maintenance.upkeep import Keeper, Task
from lakehouse.settings import Settings
from lakehouse.storage.spark.query_errors import error_line
from lakehouse.storage.tables import Lake

_MOST_BYTES = 256 << 20  # the maximum total size of files to rewrite while micro-batches wait
_LOOK_EVERY_S = 1.0
log = logging.getLogger(__name__)


class Rounds:
    """A background thread that maintains all tables periodically, one at a time.

    A round begins `every` after the previous round ended. Before each table, the thread waits until
    `is_quiet()` is true, for at most a quarter of `every` in total. A failure is reported but does not end
    the run. The next round retries the table.
    """

    def __init__(
        self,
        lake: Lake,
        todo: Sequence[Task],
        settings: Settings,
        *,
        every: timedelta,
        clock: Clock,
        on_notice: Callable[[str], None],
    ) -> None:
        self._lake = lake
        self._tasks = todo
        self._settings = settings
        self._every_s = every.total_seconds()
        self._clock = clock
        self._on_notice = on_notice

    @contextmanager
    def beside(self, alone: Alone, is_quiet: Callable[[], bool]) -> Iterator[None]:
        """Maintain the tables during the block. At the end of the block, finish the table in progress.

        Merged tables are rewritten inside `alone()`, while micro-batches wait.
        """
        over, keeper = (
            threading.Event(),
            Keeper(self._lake, self._settings, alone=alone, most_bytes=_MOST_BYTES),
        )
        rounds = threading.Thread(target=self._run, args=(keeper, is_quiet, over), name="upkeep")
        rounds.start()
        try:
            yield
        finally:
            over.set()
            rounds.join()

    def _run(self, keeper: Keeper, is_quiet: Callable[[], bool], over: threading.Event) -> None:
        while not over.wait(self._every_s):
            for task in self._tasks:
                _await_quiet(is_quiet, over, self._every_s / 4 / len(self._tasks))
                if over.is_set():
                    return
                self._step(keeper, task)

    def _step(self, keeper: Keeper, task: Task) -> None:
        try:
            kept = keeper.keep(task, self._clock())
        except Exception as failure:
            log.exception("%s: upkeep failed", task.spec.qualified_name)
            self._on_notice(f"{task.spec.qualified_name}: upkeep failed: {error_line(failure)}")
            return
        if kept is not None and kept.has_done_something:
            kept.note()
            self._on_notice(str(kept))


def _await_quiet(is_quiet: Callable[[], bool], over: threading.Event, most_s: float) -> None:
    deadline = time.monotonic() + most_s
    while not is_quiet() and (left := deadline - time.monotonic()) > 0:
        if over.wait(min(left, _LOOK_EVERY_S)):
            return
