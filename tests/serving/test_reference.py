"""/docs: every endpoint with an example that works, under the live page's navigation."""

from __future__ import annotations

import html
import json
import re
import shlex

from fastapi import FastAPI
from starlette.testclient import TestClient

from lakehouse.serving.security.access import EVENTS_PATH, Access
from tests.support.served_lakes import MakeClient


def examples(client: TestClient) -> dict[tuple[str, str], list[str]]:
    """Return the arguments of each example, by the endpoint's method and path, in the order of the page."""
    text = client.get("/docs").text
    found = re.findall(r"<h3><code>(\w+) (\S+)</code></h3>.*?<pre [^>]*>(.*?)</pre>", text, re.DOTALL)
    return {(method, html.unescape(path)): shlex.split(html.unescape(said)) for method, path, said in found}


def test_every_endpoint_has_an_example_that_is_not_refused(make_client: MakeClient) -> None:
    client = make_client(produces=True, changes={"kafka.bootstrap_servers": "127.0.0.1:1"})
    app = client.app
    assert isinstance(app, FastAPI)
    paths = app.openapi()["paths"]
    found = examples(client)
    assert set(found) == {(method.upper(), path) for path, methods in paths.items() for method in methods}
    statuses = {}
    for (method, path), (program, *arguments) in found.items():
        assert program == "curl"
        assert ("-N" in arguments) == (path == EVENTS_PATH)
        assert (method != "GET") == ("-X" in arguments and method in arguments)
        (url,) = (one for one in arguments if one.startswith("http://localhost:8080/"))
        if method == "GET" and path != EVENTS_PATH:
            statuses[path] = client.get(url).status_code
    # An empty lake has no rows, no letter and no action; its streams have no ids; there is no broker.
    assert set(statuses.values()) == {200, 404, 422, 503}
    assert [path for path, status in statuses.items() if status == 422] == ["/api/v1/records"]
    assert statuses["/api/v1/tables/product_sales/row"] == 404
    body = found["POST", "/api/v1/actions"][-1]
    assert json.loads(body) == {"action": "replay", "rule": "late", "dryRun": True}


def test_behind_an_https_proxy_the_examples_use_https(make_client: MakeClient) -> None:
    behind = make_client(Access(None, is_https=True))
    urls = [one for said in examples(behind).values() for one in said if "://" in one]
    assert urls
    assert all(url.startswith("https://localhost:8080/") for url in urls)


def test_the_reference_has_the_pages_navigation_and_runs_only_the_theme(client: TestClient) -> None:
    found = client.get("/docs")
    navigation = re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', client.get("/").text.split("<main")[0])
    views = {label: href for href, label in navigation}
    for label in ("Overview", "Dead letters", "Gold", "Checks", "Log"):
        assert f'<a href="./{views[label]}">{label}</a>' in found.text
    assert '<a class="quiet" href="docs" aria-current="page">API</a>' in found.text
    assert re.findall(r'<script src="([^"]*)"', found.text) == ["page/theme.js"]
    policy = dict(one.split(" ", 1) for one in found.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == (
        "'none'",
        "'self'",
        "'self'",
    )
    assert "<style" not in found.text
