"""Interrupts taken at chosen moments, so that a process is never started and then forgotten.

A KeyboardInterrupt can otherwise arrive between the fork and the line that records the child, and the
default action of SIGTERM ends Python without running any `finally`.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    Handler = Callable[[int, FrameType | None], object] | int | None

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DeferredInterrupts:
    """Hold SIGINT, SIGTERM and SIGHUP back until `check` is called, or to the end of the `with` block.

    Outside the main thread there is nothing to hold back: Python runs handlers in the main thread only.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._previous: dict[int, Handler] = {}

    def check(self) -> None:
        """Act on a signal that came meanwhile; a safe place to be interrupted.

        The previous handler runs: Python's own for SIGINT raises KeyboardInterrupt, one of the application
        may just set a flag. Without one, SystemExit is raised with the exit code that a shell gives, so that
        `finally` blocks run.
        """
        while self._pending:
            number = self._pending.pop(0)
            handler = self._previous[number]
            if callable(handler):
                handler(number, None)
            elif handler == signal.SIG_DFL:
                raise SystemExit(128 + number)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if error is None:
            self.check()

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self._pending.append(number)
