"""`/api/v1/session`: exchange a token for a same-origin cookie, and describe the caller."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response

from lakehouse.serving.answers import plain
from lakehouse.serving.problems import Problem
from lakehouse.serving.security.access import SESSION_PATH, Access, bearer_of, caller_of
from lakehouse.serving.security.sessions import LASTS_S, Sessions


def router(access: Access) -> APIRouter:
    """Return the routes for sessions. They set no cookie if no token is required."""
    routes, sessions = APIRouter(tags=["session"]), access.sessions
    cookie: Any = {"key": access.cookie, "httponly": True, "samesite": "strict", "secure": access.is_https}

    @routes.get(SESSION_PATH)
    async def who(request: Request) -> Response:
        """Return the caller's name and scopes. `needsToken` is false if every caller has all scopes."""
        return plain(_said(request, sessions))

    @routes.post(SESSION_PATH)
    async def begin(request: Request) -> Response:
        """Set a cookie that replaces the token in `Authorization` for 12 hours, on this origin only."""
        answer = plain(_said(request, sessions))
        if sessions is not None:
            secret = bearer_of(request.headers)
            if secret is None:
                raise Problem(HTTPStatus.UNAUTHORIZED, "a session requires Authorization: Bearer …")
            answer.set_cookie(value=sessions.begin(secret), max_age=LASTS_S, **cookie)
        return answer

    @routes.delete(SESSION_PATH, status_code=HTTPStatus.NO_CONTENT)
    async def end(request: Request) -> Response:
        """End the session, and delete its cookie."""
        answer = Response(status_code=HTTPStatus.NO_CONTENT)
        if sessions is not None:
            sessions.end(request.cookies.get(access.cookie, ""))
            answer.delete_cookie(**cookie)
        return answer

    return routes


def _said(request: Request, sessions: Sessions | None) -> dict[str, object]:
    caller = caller_of(request)
    return {
        "actor": caller.name,
        "scopes": sorted(scope.value for scope in caller.scopes),
        "needsToken": sessions is not None,
    }
