"""Answers as they leave: JSON with where it comes from, an ETag, and 304 where the reader has it already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response

from lakehouse.serving.lookups import Answer

_JSON = "application/json"


def answered(request: Request, answer: Answer, body: Mapping[str, Any]) -> Response:
    """Return a body, and what the answer says of itself; nothing where the reader has this very version."""
    return _leaving(request, answer, _dumped({**body, **answer.origin}))


def answered_rows(
    request: Request, answer: Answer, before: Mapping[str, Any], rows: str, after: Mapping[str, Any]
) -> Response:
    """Return the same with `rows`, which is JSON, in between, as it is: numbers stay exact."""
    head = _dumped(dict(before))[:-1]
    tail = _dumped({**after, **answer.origin})[1:]
    return _leaving(request, answer, f"{head},{rows},{tail}")


def plain(body: object, status: int = HTTPStatus.OK) -> Response:
    """Return a body that is of no one table."""
    return Response(_encoded(_dumped(body)), status, media_type=_JSON)


def with_json(body: Mapping[str, Any], more: str) -> Response:
    """Return the same with a further member that is JSON already."""
    return Response(_encoded(f"{_dumped(body)[:-1]},{more}}}"), media_type=_JSON)


def _leaving(request: Request, answer: Answer, text: str) -> Response:
    headers = {"ETag": answer.etag, "Cache-Control": "no-cache"}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if answer.etag in known or known == ["*"]:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(_encoded(text), headers=headers, media_type=_JSON)


def _dumped(body: object) -> str:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")
