"""Who may request what: tokens and their scopes, this host's names, and protection against other sites."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from lakehouse.serving.limits import RATE, Rate
from lakehouse.serving.problems import Problem, response
from lakehouse.serving.sessions import COOKIE, Sessions
from lakehouse.serving.tokens import Caller, Scope, Tokens

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
NOBODY = Caller("nobody", frozenset())
LOCAL = Caller("local", frozenset(Scope))
_READS = {"GET", "HEAD", "OPTIONS"}
SESSION_PATH = "/api/v1/session"
LIVE_PATH, READY_PATH = "/health/live", "/health/ready"
_PROBES = frozenset({LIVE_PATH, READY_PATH})
"""Paths open to everybody. Process monitors have no token, and get nothing that needs one."""
_BEARER = "bearer "


@dataclass(frozen=True)
class Access:
    """`tokens` are null if none is needed; `hosts` are this server's names for requests that write.

    Without tokens every request must use one of these names, so that no page of another site reaches the
    server under a name of its own.
    """

    tokens: Tokens | None
    hosts: frozenset[str] = LOOPBACK_NAMES
    rate: Rate = RATE

    @cached_property
    def sessions(self) -> Sessions | None:
        """The sessions of token holders; null if no token is needed."""
        return None if self.tokens is None else Sessions(self.tokens)


def is_loopback(host: str) -> bool:
    """Tell whether an address is reachable from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def may(request: Request, scope: Scope) -> bool:
    """Tell whether the caller has a scope."""
    return scope in caller_of(request).scopes


def caller_of(request: Request) -> Caller:
    """Return who makes the request."""
    caller: Caller = getattr(request.state, "caller", NOBODY)
    return caller


def requires(scope: Scope) -> Callable[[Request], None]:
    """Return a dependency that refuses callers without the scope."""

    def check(request: Request) -> None:
        if not may(request, scope):
            raise Problem(HTTPStatus.FORBIDDEN, f"this needs a token with the scope {scope.value}")

    return check


class Entrance:
    """Admits a request, or answers it with 401, 403 or 429."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._limiter = access.rate.limiter()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass on a request if it is admitted."""
        if scope["type"] == "http":
            try:
                scope.setdefault("state", {})["caller"] = self._admit(scope)
            except Problem as problem:
                await response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, scope: AsgiScope) -> Caller:
        headers, access = Headers(scope=scope), self._access
        reads = scope["method"] in _READS
        if not reads or access.tokens is None:
            _check_host(headers, access.hosts)
        if not reads:
            _check_origin(headers)
        address = (scope.get("client") or ("",))[0]
        if reads and scope["path"] in _PROBES:
            self._limiter.take(address)
            return NOBODY
        caller = LOCAL if access.tokens is None else _caller(scope, access.tokens, access.sessions)
        self._limiter.take(caller.name if access.tokens is not None else address)
        needed = Scope.READ if reads else Scope.OPERATE
        if scope["path"] != SESSION_PATH and needed not in caller.scopes:
            raise Problem(HTTPStatus.FORBIDDEN, f"this needs a token with the scope {needed.value}")
        return caller


def bearer_of(headers: Headers) -> str | None:
    """Return the token in a request, null for none."""
    given = headers.get("authorization", "")
    return given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else None


def _caller(scope: AsgiScope, tokens: Tokens, sessions: Sessions | None) -> Caller:
    request = HTTPConnection(scope)
    secret, id_ = bearer_of(request.headers), request.cookies.get(COOKIE)
    if secret is not None:
        found = tokens.caller(secret)
    else:
        found = None if id_ is None or sessions is None else sessions.caller(id_)
    if found is None:
        why = "a token is required: Authorization: Bearer …; `lakehouse tokens add` makes one"
        raise Problem(HTTPStatus.UNAUTHORIZED, why, headers={"WWW-Authenticate": "Bearer"})
    return found


def _check_host(headers: Headers, hosts: frozenset[str]) -> None:
    host = _name(f"//{headers.get('host', '')}")
    if host not in hosts:
        raise Problem(HTTPStatus.FORBIDDEN, f"this server is not called {host!r}; --allow-host names more")


def _check_origin(headers: Headers) -> None:
    """Refuse pages of another origin; only browsers send an origin."""
    origin = headers.get("origin")
    if origin is not None and _place(origin) != _place(f"//{headers.get('host', '')}"):
        raise Problem(HTTPStatus.FORBIDDEN, f"pages of {origin} may not write here")
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise Problem(HTTPStatus.FORBIDDEN, "pages of other sites may not write here")


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _place(url: str) -> tuple[Any, ...] | None:
    """Return host and port of an origin; null, which equals none, if it is not an origin."""
    try:
        parts = urlsplit(url)
        return (parts.hostname, parts.port) if parts.hostname else (url, object())
    except ValueError:
        return (url, object())
