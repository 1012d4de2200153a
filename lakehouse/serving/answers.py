"""JSON responses with their source and an ETag. A client that already has the current version gets 304."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response

from lakehouse.serving.problems import UNKEPT

_JSON = "application/json"


@dataclass(frozen=True)
class Origin:
    """The source of a response, with the generation and version of the table.

    `generation` and `version` are None if the table does not exist yet. `is_final` is true if the response
    can no longer change, and None if that is unknown.
    """

    source: str
    generation: int | None
    version: int | None
    is_final: bool | None = None

    @property
    def members(self) -> dict[str, Any]:
        """The members of the JSON body that describe the source."""
        stamp = {"source": self.source, "generation": self.generation, "version": self.version}
        return stamp | {"isFinal": self.is_final}

    @property
    def etag(self) -> str:
        """The ETag, which changes whenever the response could have changed."""
        known = (self.source, self.generation, self.version)
        return f'"{"-".join(str(one) for one in known if one is not None)}"'


def answered(request: Request, origin: Origin, body: Mapping[str, Any]) -> Response:
    """Return a response with this body and its origin, or 304 if the client already has it."""
    return _leaving(request, origin.etag, _dumped({**body, **origin.members}))


def answered_rows(
    request: Request, origin: Origin, before: Mapping[str, Any], rows: str, after: Mapping[str, Any]
) -> Response:
    """Return a response like `answered`, with the JSON text `rows` inserted between `before` and `after`.

    `rows` is not parsed, so numbers in it keep all their digits.
    """
    head = _dumped(dict(before))[:-1]
    tail = _dumped({**after, **origin.members})[1:]
    return _leaving(request, origin.etag, f"{head},{rows},{tail}")


def unkept(origin: Origin, before: Mapping[str, Any], rows: str) -> Response:
    """Return a response with raw record data that browsers and proxies must not store.

    `rows` is JSON text, as in `answered_rows`.
    """
    text = f"{_dumped(dict(before))[:-1]},{rows},{_dumped(origin.members)[1:]}"
    return Response(_encoded(text), headers=UNKEPT, media_type=_JSON)


def plain(body: object, status: int = HTTPStatus.OK) -> Response:
    """Return a response without origin or ETag, for a body that does not come from a single table."""
    return Response(_encoded(_dumped(body)), status, media_type=_JSON)


def in_camel_case(value: Any) -> Any:
    """Convert a value for a JSON response: keys to camelCase, and UTC times to ISO 8601 strings."""
    if isinstance(value, Mapping):
        return {camel(name): in_camel_case(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [in_camel_case(one) for one in value]
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def camel(name: str) -> str:
    """Convert the name of a column or field to camelCase, as used in responses."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _leaving(request: Request, etag: str, text: str) -> Response:
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if etag in known or known == ["*"]:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(_encoded(text), headers=headers, media_type=_JSON)


def _dumped(body: object) -> str:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")
