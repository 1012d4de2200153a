"""Crashes in which no process ends: a write fails, before it has done anything or once it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class CrashError(Exception):
    """What stands in for the end of the process."""


def crash_at(
    write: Callable[..., Any], number: int, *, after: bool, for_good: bool = False
) -> Callable[..., Any]:
    """Return a write that works as it does, but for its call of this number, which fails.

    With `for_good` so do all calls after it, as in a process that has ended.
    """
    calls = 0

    def crashing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < number or (calls > number and not for_good):
            return write(*arguments, **named)
        if after and calls == number:
            write(*arguments, **named)
        raise CrashError

    return crashing


@dataclass
class Fault:
    """Something wrong that is there until it is mended."""

    is_there: bool = True
    error: type[BaseException] = CrashError

    def mend(self, _notice: str = "") -> None:
        """Take it away; may be what a notice is for."""
        self.is_there = False

    def breaking(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return what works as it does, but fails as long as the fault is there."""

        def crashing(*arguments: Any, **named: Any) -> Any:
            if self.is_there:
                raise self.error
            return work(*arguments, **named)

        return crashing
