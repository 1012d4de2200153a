"""`/data-docs`: the pages that `lakehouse expect` writes. They run no scripts and load nothing."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from anyio import to_thread
from fastapi import APIRouter, Response

from lakehouse.serving.problems import Problem

INDEX = "/data-docs/index.html"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "private, no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def router(site: Path) -> APIRouter:
    """Return the route for the pages in the directory `site`, which may not exist yet."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/data-docs/{path:path}")
    async def page(path: str) -> Response:
        """Return a page. Answers 404 for anything that is not an HTML file in the directory."""
        text = await to_thread.run_sync(_read, site, path)
        if text is None:
            raise Problem(HTTPStatus.NOT_FOUND, "there is no such page; `lakehouse expect` writes the pages")
        return Response(text, headers=_HEADERS, media_type="text/html")

    return routes


def _read(site: Path, path: str) -> bytes | None:
    """Return a page's content, or None for a path that leads out of the directory, even through a link."""
    try:
        found = (site / path).resolve(strict=True)
        is_page = found.suffix == ".html" and found.is_file() and found.is_relative_to(site.resolve())
        return found.read_bytes() if is_page else None
    except (OSError, ValueError):  # ValueError: a null character
        return None
