"""The first check of every request: its Host must be one of the server's names.

The check prevents DNS rebinding by pages from other sites. Every response also tells browsers not to guess
its media type and, unless it sets Cache-Control, not to store it.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakehouse.serving.problems import UNKEPT, Problem, response


class Front:
    """Middleware that passes on requests for one of `hosts`, and answers all other requests with 403."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                for name, value in UNKEPT.items():
                    headers.setdefault(name, value)
            await send(message)

        host = _name(Headers(scope=scope).get("host", ""))
        if host in self._hosts:
            await self._app(scope, receive, guarded)
        else:
            why = f"{host!r} is not a name of this server; --allow-host adds names"
            await response(Problem(HTTPStatus.FORBIDDEN, why))(scope, receive, guarded)


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
