"""Errors as problem+json (RFC 9457), with cause, location and remedy but never a stack trace."""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from lakehouse.common.nearest import did_you_mean, nearest

MEDIA_TYPE = "application/problem+json"
UNKEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers that tell clients not to store a response and not to guess its media type."""
_CHOICES = re.compile(r"'([^']*)'")
_log = logging.getLogger(__name__)


class Problem(Exception):  # noqa: N818 - RFC 9457's term
    """An error response, with its status, detail, extra members and headers."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members


def unprocessable(parameter: str, detail: str) -> Problem:
    """Return the 422 error for an invalid parameter."""
    found = [{"parameter": parameter, "detail": detail}]
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{parameter}: {detail}", errors=found)


def response(problem: Problem) -> Response:
    """Return the HTTP response that reports an error."""
    status = HTTPStatus(problem.status)
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": problem.detail}
    text = json.dumps(body | problem.members, ensure_ascii=False).encode(errors="replace")
    return Response(text, status.value, UNKEPT | problem.headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make the app report every error as problem+json."""
    app.exception_handler(Problem)(_of_ours)
    app.exception_handler(RequestValidationError)(_of_parameters)
    app.exception_handler(HTTPException)(_of_routing)
    app.exception_handler(Exception)(_of_defects)


async def _of_ours(_request: Request, error: Problem) -> Response:
    return response(error)


async def _of_parameters(_request: Request, error: RequestValidationError) -> Response:
    found = [
        {"parameter": ".".join(map(str, one["loc"][1:])) or str(one["loc"][0]), "detail": _said(one)}
        for one in error.errors()
    ]
    detail = "; ".join(f"{one['parameter']}: {one['detail']}" for one in found)
    return response(Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors=found))


def _said(error: Mapping[str, Any]) -> str:
    """Return the message for an invalid parameter, with the nearest allowed value if there is one."""
    found = nearest(str(error.get("input")), _CHOICES.findall(str((error.get("ctx") or {}).get("expected"))))
    said = str(error["msg"])
    return f"{said}; {did_you_mean(found)}" if found else said


async def _of_routing(request: Request, error: HTTPException) -> Response:
    path, routes = request.url.path, request.app.openapi()["paths"]
    near = "".join(f"; did you mean {one}?" for one in nearest(path, routes, most=1))
    details = {
        HTTPStatus.NOT_FOUND: f"there is nothing at {path}{near or ';'} /docs lists the endpoints",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not allowed for {request.url.path}",
    }
    detail = details.get(HTTPStatus(error.status_code), str(error.detail))
    return response(Problem(error.status_code, detail, headers=error.headers))


async def _of_defects(request: Request, error: Exception) -> Response:
    number = secrets.token_hex(8)
    _log.error("%s %s failed, error id %s", request.method, request.url.path, number, exc_info=error)
    detail = f"this is a bug in the server; for details, search its log for {number}"
    return response(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail, id=number))
