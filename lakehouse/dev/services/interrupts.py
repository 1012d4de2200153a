"""Defer interrupts to safe moments, so that every started process is also recorded.

Otherwise, a KeyboardInterrupt could arrive after the fork but before the line that records the child. By
default, SIGTERM would end Python without running any `finally` blocks.
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
    """A context manager that defers SIGINT, SIGTERM and SIGHUP until `check` is called or the block ends.

    Outside the main thread, nothing is deferred, because Python runs signal handlers only in the main thread.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._previous: dict[int, Handler] = {}

    def check(self) -> None:
        """Handle the signals that have arrived. Call this method where an interrupt is safe.

        Each signal is passed to its previous handler. Python's own handler for SIGINT raises
        KeyboardInterrupt, but an application's handler might only set a flag. Without a handler, SystemExit
        is raised so that `finally` blocks run. Its exit code is the code that a shell reports for the signal.
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
