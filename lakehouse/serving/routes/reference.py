"""`/docs`: all endpoints and their parameters on one page, generated from OpenAPI, without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Response

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
_STYLE = """
:root { color-scheme: light dark } body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem;
margin: 2rem auto; padding: 0 1rem } code { font-size: .95em; overflow-wrap: anywhere }
dt { font-family: monospace } h3 { margin-bottom: 0 }
"""


def router(app: FastAPI) -> APIRouter:
    """Return the route for the reference page."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def docs() -> Response:
        """Return the reference page."""
        page = "\n".join(_page(app.openapi()))
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": _POLICY})

    return routes


def _page(described: Mapping[str, Any]) -> Iterator[str]:
    title, about = escape(described["info"]["title"]), escape(described["info"]["description"])
    yield '<!doctype html><html lang="en"><meta charset="utf-8">'
    yield f"<title>{title}</title><style>{_STYLE}</style>"
    yield '<meta name="viewport" content="width=device-width"><main>'
    yield f'<h1>{title}</h1><p>{about} <a href="/openapi.json">OpenAPI</a></p>'
    last = None
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", [""])[0]
            if tag != last:
                yield f"<h2>{escape(tag)}</h2>"
                last = tag
            yield from _operation(method, path, operation)
    yield "</main></html>"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h3><code>{method.upper()} {escape(path)}</code></h3>"
    yield f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p><dl>"
    for one in operation.get("parameters", ()):
        need = "" if one.get("required") else " (optional)"
        yield f"<dt>{escape(one['name'])}{need}</dt><dd>{escape(one.get('description', ''))}</dd>"
    yield "</dl>"
