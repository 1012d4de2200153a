"""Limits on request rates, with bursts, and on the size of request bodies."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakehouse.serving.problems import Problem, response

MOST_BODY = 64 * 1024
_BODY_S = 10.0
_CLIENTS = 10_000
_IPV6_NETWORK = 64


@dataclass(frozen=True)
class Rate:
    """The number of requests per second that a client may send, and the size of a burst."""

    per_second: float = 2_000.0
    burst: float = 4_000.0

    def limiter(self, clock: Callable[[], float] = time.monotonic) -> Limiter:
        """Return a new limiter for this rate."""
        return Limiter(self, clock)


RATE = Rate()
REFUSALS = Rate(per_second=1.0, burst=60.0)
"""The permitted rate of requests without a valid token, per address. Each could be a guess at a token."""


class Limiter:
    """A rate limiter that counts each client's requests. It remembers the last ten thousand clients."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._left = OrderedDict[str, tuple[float, float]]()  # requests left, and the time of that count

    def take(self, client: str) -> None:
        """Count a request. Raises Problem 429, with the seconds to wait, if the client is over the limit."""
        now = self._clock()
        left, at = self._left.pop(client, (self._rate.burst, now))
        left = min(self._rate.burst, left + (now - at) * self._rate.per_second)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        while len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        if left < 1:
            wait = ceil((1 - left) / self._rate.per_second)
            detail = f"the limit is {self._rate.per_second:g} requests per second; try again in {wait} s"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, headers={"Retry-After": str(wait)})


class Bodies:
    """Middleware that reads a request's whole body, then passes the request on.

    A request whose body is too large gets 413. A request whose body arrives too slowly gets 408.
    """

    def __init__(self, app: ASGIApp, most: int = MOST_BODY, within_s: float = _BODY_S) -> None:
        self._app = app
        self._most = most
        self._within_s = within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on together with its complete body."""
        if scope["type"] == "http":
            try:
                receive = await self._whole(Headers(scope=scope), receive)
            except Problem as problem:
                await response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _whole(self, headers: Headers, receive: Receive) -> Receive:
        """Return a `receive` that first returns the complete body, and then delegates to the original."""
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return receive
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._most:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self._within_s):
                last: Message = {"type": "http.request", "more_body": True}
                while last.get("more_body"):
                    last = await receive()
                    body += last.get("body", b"")
                    if len(body) > self._most:
                        raise self._too_large()
        except TimeoutError:
            why = f"the request body did not arrive within {self._within_s:g} s"
            raise Problem(HTTPStatus.REQUEST_TIMEOUT, why, headers={"Connection": "close"}) from None
        waiting = [{**last, "body": bytes(body)} if last["type"] == "http.request" else last]

        async def replayed() -> Message:
            return waiting.pop() if waiting else await receive()

        return replayed

    def _too_large(self) -> Problem:
        why = f"a request body may be at most {self._most:,} bytes long"
        return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why, headers={"Connection": "close"})


def network_of(address: str) -> str:
    """Return the name of the client that is counted for an address.

    For IPv6, that is the address's /64 network, because a single host can use all addresses in it.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:  # noqa: PLR2004 - IPv4
        return address
    return str(ipaddress.ip_network((found, _IPV6_NETWORK), strict=False))
