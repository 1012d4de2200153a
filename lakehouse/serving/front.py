"""The first check of every request: its Host must be one of this server's names.

So no page of another site reaches the server under a name of its own. Every answer tells browsers to take
its media type as given, and to keep nothing that does not say otherwise.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakehouse.serving.problems import UNKEPT, Problem, response


class Front:
    """Passes on requests for this server, and answers others with 403; `hosts` are its names."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request."""
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
            why = f"this server is not called {host!r}; --allow-host names more"
            await response(Problem(HTTPStatus.FORBIDDEN, why))(scope, receive, guarded)


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
