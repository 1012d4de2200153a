"""A fault that persists until it is cleared; `lakehouse.testing.kills` simulates crashes at single writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakehouse.testing.kills import CrashError


@dataclass
class Fault:
    """A fault that persists until it is cleared."""

    is_there: bool = True
    error: type[BaseException] = CrashError

    def mend(self, _notice: str = "") -> None:
        """Clear the fault; can be used as a handler of notices."""
        self.is_there = False

    def breaking(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that works like the given one, but fails until the fault is cleared."""

        def crashing(*arguments: Any, **named: Any) -> Any:
            if self.is_there:
                raise self.error
            return work(*arguments, **named)

        return crashing
