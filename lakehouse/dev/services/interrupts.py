"""Defer interrupts to safe moments, so that no started process is left unrecorded.

Otherwise a KeyboardInterrupt could arrive between the fork and the line that records the child, and SIGTERM
would by default end Python without running any `finally`.
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
    """Defer SIGINT, SIGTERM and SIGHUP until `check` is called, or until the end of the `with` block.

    Outside the main thread, nothing is deferred, because Python runs signal handlers only in the main thread.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._previous: dict[int, Handler] = {}

    def check(self) -> None:
        """Handle signals that arrived in the meantime; call this where an interrupt is safe.

        The previous handler runs: Python's own handler for SIGINT raises KeyboardInterrupt, but an
        application's handler may just set a flag. Without a handler, SystemExit is raised with the exit code
        that a shell reports for the signal, so that `finally` blocks run.
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
