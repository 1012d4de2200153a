"""Schedule the streams' rounds: the stream that has waited longest is next, and several run concurrently.

All unread rows of a stream arrived after its last round began, so the stream whose last round began earliest
could have the oldest unread record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from pyspark.util import InheritableThread

from lakehouse.engine.runtime.loop import StreamLoop
from lakehouse.engine.runtime.signals import Stop

Alone = Callable[[], AbstractContextManager[None]]
"""A function that returns a context in which no micro-batch runs."""

_QUIET_S = 1.0
_POLL_S = 0.2
_RETRY_S = 0.05  # seconds between checks for the end of a pause in a catch-up


@dataclass(eq=False)
class _Entry:
    """A stream's schedule: when its last round began and when the next is due, by a monotonic clock."""

    loop: StreamLoop
    looked_at: float = 0.0
    due_at: float = 0.0
    is_busy: bool = False
    is_done: bool = False


class Schedule:
    """A schedule that runs the streams' rounds in threads.

    `interval_s` is the minimum time between the starts of a stream's rounds. If it is None, each stream ends
    when it has caught up.
    """

    def __init__(
        self, loops: Sequence[StreamLoop], stop: Stop, *, at_once: int, interval_s: float | None
    ) -> None:
        self._entries = [_Entry(loop) for loop in loops]
        self._stop = stop
        self._at_once = max(1, min(at_once, len(loops)))
        self._interval_s = interval_s
        self._turn = threading.Condition()
        self._claims = 0
        self._failure: BaseException | None = None
        self._active_at = time.monotonic()

    def run(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run until every stream has caught up or a stop is requested. Raise any error that ends the run.

        `meanwhile` is called several times a second, from this thread.
        """
        workers = [
            InheritableThread(target=self._work, name=f"stream-{number}", daemon=True)
            for number in range(self._at_once)
        ]
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                workers[0].join(_POLL_S) if workers[0].is_alive() else time.sleep(_POLL_S)
                if not self._stop.requested and self._failure is None:
                    meanwhile()
        except BaseException as failure:
            self._fail(failure)
            raise
        finally:
            for worker in workers:
                worker.join()
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no stream is running a round, and prevent new rounds during the block."""
        with self._turn:
            self._claims += 1
            self._turn.wait_for(lambda: not any(entry.is_busy for entry in self._entries))
        try:
            yield
        finally:
            with self._turn:
                self._claims -= 1
                self._turn.notify_all()

    def is_quiet(self) -> bool:
        """Return whether no stream is running a round, and none has written anything in the last second."""
        is_busy = any(entry.is_busy for entry in self._entries)
        return not is_busy and time.monotonic() - self._active_at > _QUIET_S

    def _work(self) -> None:
        try:
            while (entry := self._next()) is not None:
                did = False
                try:
                    did = entry.loop.round()
                finally:
                    self._give_back(entry, did=did)
        except BaseException as failure:  # noqa: BLE001 - raised by `run`
            self._fail(failure)

    def _next(self) -> _Entry | None:
        """Wait until a stream is due, and return its entry; return None when the run ends."""
        with self._turn:
            while not self._is_over:
                now = time.monotonic()
                idle = [one for one in self._entries if not one.is_busy and not one.is_done]
                ready = [one for one in idle if one.due_at <= now]
                if ready and not self._claims:
                    entry = min(ready, key=lambda one: one.looked_at)
                    entry.is_busy, entry.looked_at = True, now
                    return entry
                due = min((one.due_at for one in idle), default=now + _POLL_S)
                self._turn.wait(min(max(due - now, 0.001), _POLL_S) if not self._claims else _POLL_S)
            self._turn.notify_all()
            return None

    def _give_back(self, entry: _Entry, *, did: bool) -> None:
        with self._turn:
            now, entry.is_busy = time.monotonic(), False
            if did:
                self._active_at = now
            if self._interval_s is None:
                entry.is_done = not did and not entry.loop.will_try_again
                entry.due_at = now + (0 if did else _RETRY_S)
            else:
                entry.due_at = max(entry.looked_at + self._interval_s, now)
            self._turn.notify_all()

    @property
    def _is_over(self) -> bool:
        done = all(entry.is_done for entry in self._entries)
        return done or self._stop.requested or self._failure is not None

    def _fail(self, failure: BaseException) -> None:
        with self._turn:
            self._failure = self._failure or failure
            self._turn.notify_all()
