"""`/`: the live page, which consists of a few static files in the package.

The files contain no data, so the server delivers them to every client, before any access check. The page asks
for a token if the server requires one. Like any other client, it reads its data from `/api/v1`.
"""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

FILES = Path(__file__).parents[1] / "page"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_SERVED = {".html", ".css", ".js", ".LICENSE"}
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # browsers revalidate each time, and get 304
}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    etag: str


class Page:
    """Middleware that serves the page's files, and passes on all other requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._files = {_path_of(path): _read(path) for path in _paths()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for one of the page's files, or pass the request on."""
        file = self._files.get(scope["path"]) if scope["type"] == "http" else None
        if file is None or scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        headers = _HEADERS | {"ETag": file.etag}
        known = [one.strip() for one in Headers(scope=scope).get("if-none-match", "").split(",")]
        if file.etag in known or f"W/{file.etag}" in known:
            await Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)(scope, receive, send)
            return
        await Response(file.content, headers=headers, media_type=file.media_type)(scope, receive, send)


def _paths() -> list[Path]:
    return [path for path in sorted(FILES.rglob("*")) if path.suffix in _SERVED]


def _path_of(path: Path) -> str:
    name = path.relative_to(FILES).as_posix()
    return "/" if name == "index.html" else f"/page/{name}"


def _read(path: Path) -> _File:
    content = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "text/plain"
    return _File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
