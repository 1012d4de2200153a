"""`/docs`: all endpoints, each with its parameters and an example, generated from OpenAPI.

The page has the live page's navigation and styles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, FastAPI, Request, Response

from lakehouse.serving.answers import plain
from lakehouse.serving.routes.page import FILES
from lakehouse.serving.security.access import EVENTS_PATH, SESSION_PATH
from lakehouse.streams.definition import Stream

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_TIME = "2026-03-01T00:00:00Z"
_FIXED = {
    "rule": "late",
    "kind": "failure",
    "id": "ID",
    "partition": 0,
    "offset": 17,
    "hours": 24,
    "minutes": 10,
    "events": 100,
    "limit": 5,
}
_OPTIONAL = {"stream", "table", "rule", "kind", "id", "hours", "minutes", "events", "limit"}
"""The optional parameters that are in an example, at most two in each."""
_MOST_OPTIONAL = 2
_NOT_HERE = re.compile(r'\s*<(\w+) id="(?:pulse|forget|zone)".*</\1>')


@dataclass(frozen=True)
class _Examples:
    """Examples of operations at a base URL, made from values of parameters and from the schemas of bodies."""

    base: str
    values: Mapping[str, Any]
    schemas: Mapping[str, Any]

    def of(self, method: str, path: str, operation: Mapping[str, Any]) -> str:
        """Return a curl command with all required parameters and some optional ones."""
        query = list[tuple[str, Any]]()
        left = _MOST_OPTIONAL
        for one in operation.get("parameters", ()):
            name, value = one["name"], self.values.get(one["name"])
            if one["in"] == "path":
                path = path.replace(f"{{{name}}}", quote(name.upper() if value is None else str(value)))
            elif one["in"] == "query" and one.get("required"):
                query.append((name, _value(one) if value is None else value))
            elif name in _OPTIONAL and name in self.values and left:
                query.append((name, value))
                left -= 1
        parts = ["curl", "-N"] if path == EVENTS_PATH else ["curl"]
        parts += [] if method == "GET" else ["-X", method]
        parts.append(f"'{self.base}{path}{'?' if query else ''}{urlencode(query, safe=':')}'")
        if path == SESSION_PATH and method == "POST":
            parts.append("-H 'Authorization: Bearer TOKEN'")
        if body := self._body(operation):
            parts.append(f"-H 'Content-Type: application/json' -d '{body}'")
        return " ".join(parts)

    def _body(self, operation: Mapping[str, Any]) -> str | None:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        examples = self.schemas.get(name, {}).get("examples")
        return json.dumps(examples[0]) if examples else None


def router(app: FastAPI, streams: Sequence[Stream], topics: Sequence[str]) -> APIRouter:
    """Return the routes for the reference and OpenAPI. The examples name one of the streams and topics."""
    routes = APIRouter(include_in_schema=False)
    head, values = _head(), _values(streams, topics)

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        """Return the reference page."""
        described = app.openapi()
        schemas = described.get("components", {}).get("schemas", {})
        examples = _Examples(str(request.base_url).rstrip("/"), values, schemas)
        page = "\n".join(_page(described, head, examples))
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": _POLICY})

    @routes.get("/openapi.json")
    async def openapi() -> Response:
        """Return the description of all endpoints."""
        return plain(app.openapi())

    return routes


def _head() -> str:
    """Return the live page up to its navigation, without the parts that need its scripts."""
    text = (FILES / "index.html").read_text(encoding="utf-8")
    text = text[: text.index("<main")]
    text = re.sub(r'<script src="page/(?:app|vendor/\w+)[^>]*></script>\n', "", _NOT_HERE.sub("", text))
    text = text.replace("<title>lakehouse", "<title>API · lakehouse").replace('href="#/', 'href="./#/')
    return text.replace('href="docs"', 'href="docs" aria-current="page"')


def _values(streams: Sequence[Stream], topics: Sequence[str]) -> Mapping[str, Any]:
    """Return example values of parameters by name: a stream, and its first topic and table."""
    tables = [f"gold.{table.name}" for stream in streams for table in stream.tables]
    named = {"stream": [one.name for one in streams], "topic": topics, "table": tables}
    found = {name: given[0] for name, given in named.items() if given}
    return {**found, **_FIXED}


def _page(described: Mapping[str, Any], head: str, examples: _Examples) -> Iterator[str]:
    yield head + '<main id="main" class="reference" tabindex="-1">'
    about = escape(described["info"]["description"])
    yield f'<h1>API</h1><p>{about} <a href="openapi.json">OpenAPI</a></p>'
    header = "<code>-H 'Authorization: Bearer TOKEN'</code>"
    yield f"<p>If the server requires a token, add {header} to each example.</p>"
    tagged = dict[str, list[tuple[str, str, Mapping[str, Any]]]]()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", ["other"])[0]
            tagged.setdefault(tag, []).append((method.upper(), path, operation))
    links = " · ".join(f'<a href="docs#{_anchor(tag)}">{escape(tag)}</a>' for tag in tagged)
    yield f'<nav aria-label="Groups"><p>{links}</p></nav>'
    for tag, operations in tagged.items():
        yield f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>'
        for method, path, operation in operations:
            yield from _operation(method, path, operation)
            text = examples.of(method, path, operation)
            yield f'<pre class="lines" tabindex="0" aria-label="Example">{escape(text, quote=False)}</pre>'
    yield "</main></body></html>"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h3><code>{method} {escape(path)}</code></h3>"
    about = operation.get("description") or operation.get("summary", "")
    yield "".join(f"<p>{_prose(one)}</p>" for one in about.split("\n\n"))
    parameters = operation.get("parameters", ())
    if parameters:
        yield '<dl class="facts-list">'
    for one in parameters:
        need = "" if one.get("required") else " (optional)"
        about = _prose(one.get("description", ""))
        yield f"<dt><code>{escape(one['name'])}</code>{need}</dt><dd>{about}</dd>"
    if parameters:
        yield "</dl>"


def _value(parameter: Mapping[str, Any]) -> Any:
    """Return an example value for a column of a gold table."""
    if parameter["schema"].get("type") in {"integer", "boolean"}:
        return 0
    is_time = parameter.get("description", "").startswith("A time")
    return _TIME if is_time else str(parameter["name"]).upper()


def _anchor(tag: str) -> str:
    return re.sub(r"\W+", "-", tag)


def _prose(text: str) -> str:
    """Return text as HTML, with text in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
