"""Access control with tokens and scopes, and protection against requests from other sites' pages."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from lakehouse.common.errors import SettingsError
from lakehouse.serving.problems import Problem, response
from lakehouse.serving.security.limits import RATE, REFUSALS, Rate, network_of
from lakehouse.serving.security.sessions import Sessions, cookie_of
from lakehouse.serving.security.tokens import Caller, Scope, Tokens

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
NOBODY = Caller("nobody", frozenset())
LOCAL = Caller("local", frozenset(Scope))
_READS = {"GET", "HEAD", "OPTIONS"}
SESSION_PATH = "/api/v1/session"
EVENTS_PATH = "/api/v1/events"
MOST_AT_ONCE = 32
"""The maximum number of concurrent requests per token.

It is lower than the number of scans that can run or wait, so one token cannot block all others.
Event streams have a separate limit.
"""
LIVE_PATH, READY_PATH = "/health/live", "/health/ready"
_PROBES = frozenset({LIVE_PATH, READY_PATH})
"""Paths that need no token. Health probes send none, and the responses contain nothing confidential."""
_BEARER = "bearer "


@dataclass(frozen=True)
class Access:
    """Rules for access to the server.

    `tokens` is None if no token is required. A request's Host must be one of `hosts`. `is_https` means that
    browsers reach the server only over HTTPS, directly or through a proxy. `refusals` limits the rate at
    which each address may send requests without a valid token.
    """

    tokens: Tokens | None
    hosts: frozenset[str] = LOOPBACK_NAMES
    rate: Rate = RATE
    refusals: Rate = REFUSALS
    is_https: bool = False

    @property
    def cookie(self) -> str:
        """The name of the session cookie."""
        return cookie_of(is_https=self.is_https)

    @cached_property
    def sessions(self) -> Sessions | None:
        """The sessions of token holders, or None if no token is required."""
        return None if self.tokens is None else Sessions(self.tokens)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def may(request: Request, scope: Scope) -> bool:
    """Return whether the caller's token includes a scope."""
    return scope in caller_of(request).scopes


def caller_of(request: Request) -> Caller:
    """Return the caller that `Entrance` identified for a request."""
    caller: Caller = getattr(request.state, "caller", NOBODY)
    return caller


def is_still_admitted(request: Request) -> bool:
    """Return whether the caller may still read. A token can expire or be removed while a response is sent."""
    try:
        caller: Caller = request.scope["state"]["identify"]()
    except (Problem, SettingsError):
        return False
    return Scope.READ in caller.scopes


def requires(scope: Scope) -> Callable[[Request], None]:
    """Return a FastAPI dependency that refuses callers without this scope."""

    def check(request: Request) -> None:
        if not may(request, scope):
            raise Problem(HTTPStatus.FORBIDDEN, f"this request needs a token with the scope {scope.value}")

    return check


class Entrance:
    """Middleware that admits each request, or refuses it with 401, 403 or 429."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._limiter = access.rate.limiter()
        self._refusals = access.refusals.limiter()
        self._answering = Counter[str]()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass a request on if it is admitted, otherwise send the refusal."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["identify"] = partial(self._identify, scope)
            try:
                scope["state"]["caller"] = caller = self._admit(scope)
                self._begin(scope, caller)
            except Problem as problem:
                await response(problem)(scope, receive, send)
                return
            try:
                await self._app(scope, receive, send)
            finally:
                self._end(scope, caller)
            return
        await self._app(scope, receive, send)

    def _begin(self, scope: AsgiScope, caller: Caller) -> None:
        """Count a request as in progress for its token.

        Raises Problem 429 if MOST_AT_ONCE of the token's requests are already in progress.
        """
        if self._is_counted(scope, caller):
            if self._answering[caller.name] >= MOST_AT_ONCE:
                why = f"token {caller.name} has the maximum of {MOST_AT_ONCE} requests in progress; try again"
                raise Problem(HTTPStatus.TOO_MANY_REQUESTS, why, headers={"Retry-After": "1"})
            self._answering[caller.name] += 1

    def _end(self, scope: AsgiScope, caller: Caller) -> None:
        if self._is_counted(scope, caller):
            self._answering[caller.name] -= 1
            self._answering += Counter()  # drops tokens without requests

    def _is_counted(self, scope: AsgiScope, caller: Caller) -> bool:
        return self._access.tokens is not None and caller is not NOBODY and scope["path"] != EVENTS_PATH

    def _admit(self, scope: AsgiScope) -> Caller:
        reads, address = scope["method"] in _READS, network_of((scope.get("client") or ("",))[0])
        if not reads:
            _check_origin(Headers(scope=scope), is_https=self._access.is_https)
        if reads and scope["path"] in _PROBES:
            self._limiter.take(address)
            return NOBODY
        try:
            caller = self._identify(scope)
        except Problem:
            self._refusals.take(address)
            raise
        self._limiter.take(f"token {caller.name}" if self._access.tokens is not None else address)
        needed = Scope.READ if reads else Scope.OPERATE
        if scope["path"] != SESSION_PATH and needed not in caller.scopes:
            raise Problem(HTTPStatus.FORBIDDEN, f"this request needs a token with the scope {needed.value}")
        return caller

    def _identify(self, scope: AsgiScope) -> Caller:
        """Return the request's caller. Raises Problem 401 if it has no valid token or session."""
        tokens, sessions = self._access.tokens, self._access.sessions
        if tokens is None or sessions is None:
            return LOCAL
        request = HTTPConnection(scope)
        secret, id_ = bearer_of(request.headers), request.cookies.get(self._access.cookie)
        found = sessions.caller(id_ or "") if secret is None else tokens.caller(secret)
        if found is None:
            why = "a token is required: Authorization: Bearer …; `lakehouse tokens add` creates one"
            raise Problem(HTTPStatus.UNAUTHORIZED, why, headers={"WWW-Authenticate": "Bearer"})
        return found


def bearer_of(headers: Headers) -> str | None:
    """Return the request's bearer token, or None if it has none."""
    given = headers.get("authorization", "")
    return given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else None


def _check_origin(headers: Headers, *, is_https: bool) -> None:
    """Raise Problem 403 if a page from another origin sent the request. Only browsers send an origin."""
    origin = headers.get("origin")
    if origin is not None and not _is_own(origin, headers.get("host", ""), is_https=is_https):
        raise Problem(HTTPStatus.FORBIDDEN, f"requests from origin {origin} are not allowed to make changes")
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise Problem(HTTPStatus.FORBIDDEN, "requests from other sites are not allowed to make changes")


def _is_own(origin: str, host: str, *, is_https: bool) -> bool:
    """Return whether an origin is this server, which is the case if it matches the Host header."""
    try:
        theirs, ours = urlsplit(origin), urlsplit(f"//{host}")
        places = [(parts.hostname, parts.port) for parts in (theirs, ours)]
    except ValueError:
        return False
    schemes = {"https"} if is_https else {"http", "https"}
    return theirs.scheme in schemes and theirs.hostname is not None and places[0] == places[1]
