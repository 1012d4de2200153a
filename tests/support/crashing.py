"""Something that fails until it is mended; `lakehouse.testing.kills` has crashes at single writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakehouse.testing.kills import CrashError


@dataclass
class Fault:
    """A fault that is there until it is mended."""

    is_there: bool = True
    error: type[BaseException] = CrashError

    def mend(self, _notice: str = "") -> None:
        """Remove the fault; can be used as a handler of notices."""
        self.is_there = False

    def breaking(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that works as the given one, but fails as long as the fault is there."""

        def crashing(*arguments: Any, **named: Any) -> Any:
            if self.is_there:
                raise self.error
            return work(*arguments, **named)

        return crashing
