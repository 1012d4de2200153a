"""Crashes in which no process ends: a write fails, before it has done anything or once it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CrashError(Exception):
    """What stands in for the end of the process."""


def crash_at(write: Callable[..., Any], number: int, *, after: bool) -> Callable[..., Any]:
    """Return a write that works as it does, but for its call of this number, which fails."""
    calls = 0

    def crashing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != number:
            return write(*arguments, **named)
        if after:
            write(*arguments, **named)
        raise CrashError

    return crashing
