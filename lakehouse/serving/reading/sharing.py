"""Slow lookups whose results are shared by concurrent callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from lakehouse.common.errors import LakehouseError

_T = TypeVar("_T")


class Shared(Generic[_T]):
    """The result of the blocking function `look`, shared by all callers.

    `look` is called in a thread, at most once every `every_s` seconds. If it raises a LakehouseError, all
    callers get that error until `look` is called again.
    """

    def __init__(self, look: Callable[[], _T], *, every_s: float = 1.0) -> None:
        self._look = look
        self._every_s = every_s
        self._asking = asyncio.Lock()
        self._thread = CapacityLimiter(1)
        self._until = 0.0
        self._found: _T | LakehouseError | None = None

    async def seen(self) -> _T:
        """Return the last result, or a new one after `every_s`. Raises a LakehouseError if `look` does."""
        async with self._asking:
            if self._found is None or time.monotonic() >= self._until:
                self._found = await to_thread.run_sync(self._tried, limiter=self._thread)
                self._until = time.monotonic() + self._every_s
            found = self._found
        if isinstance(found, LakehouseError):
            raise found.with_traceback(None)
        return found

    def _tried(self) -> _T | LakehouseError:
        try:
            return self._look()
        except LakehouseError as error:
            return error
