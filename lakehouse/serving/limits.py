"""Rate limits: how many requests a second a client may send, after a burst."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil

from lakehouse.serving.problems import Problem

_CLIENTS = 10_000


@dataclass(frozen=True)
class Rate:
    """Requests a second that a client may make, and how many at once."""

    per_second: float = 2_000.0
    burst: float = 4_000.0

    def limiter(self, clock: Callable[[], float] = time.monotonic) -> Limiter:
        """Return the counter of requests."""
        return Limiter(self, clock)


RATE = Rate()


class Limiter:
    """Counts requests by client; it remembers the last ten thousand clients."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._left = OrderedDict[str, tuple[float, float]]()  # how many are left, as of when

    def take(self, client: str) -> None:
        """Count one request; raises Problem 429 with the seconds to wait if none is left."""
        now = self._clock()
        left, at = self._left.pop(client, (self._rate.burst, now))
        left = min(self._rate.burst, left + (now - at) * self._rate.per_second)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        while len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        if left < 1:
            wait = ceil((1 - left) / self._rate.per_second)
            detail = f"more than {self._rate.per_second:g} requests a second; try again in {wait} s"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, headers={"Retry-After": str(wait)})
