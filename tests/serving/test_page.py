"""The live page's files: their headers, what they may contain, and that a package has them."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from lakehouse.common.errors import StoreWord
from lakehouse.common.events import Kind
from lakehouse.engine.records.dead_letters import STATUSES
from lakehouse.operations.telemetry import Word
from lakehouse.serving.routes.page import FILES
from lakehouse.serving.security.access import Access
from lakehouse.serving.security.tokens import Scope, Tokens
from tests.support.served_lakes import MINUTE_MS, NOON_MS, MakeClient, ServedLake, minute
from tests.support.streams import METRICS_1M

ROOT = Path(__file__).parents[2]
MOST_BYTES, MOST_LINES = 250_000, 260
VENDOR = FILES / "vendor"
OURS = sorted(path for path in FILES.iterdir() if path.suffix in {".html", ".css", ".js"})
THEIRS = sorted(VENDOR.iterdir())
POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
}


def path_of(file: Path) -> str:
    return "/" if file.name == "index.html" else f"/page/{file.relative_to(FILES).as_posix()}"


@pytest.mark.parametrize("file", [*OURS, *THEIRS], ids=lambda file: file.name)
def test_a_file_is_served_as_it_is_under_a_strict_policy(client: TestClient, file: Path) -> None:
    found = client.get(path_of(file))
    assert (found.status_code, found.content) == (200, file.read_bytes())
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".LICENSE": "text/plain"}
    assert found.headers["content-type"] == f"{kinds[file.suffix]}; charset=utf-8"
    assert set(found.headers["content-security-policy"].split("; ")) == POLICY
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["cache-control"] == "no-cache"

    again = client.get(path_of(file), headers={"If-None-Match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(path_of(file), headers={"If-None-Match": '"another"'}).status_code == 200
    assert client.head(path_of(file)).headers["content-length"] == str(len(found.content))


def test_everybody_gets_the_page_and_nobody_data_without_a_token(
    make_client: MakeClient, lake: ServedLake
) -> None:
    tokens = Tokens(lake.settings.home)
    tokens.add("ada", [Scope.READ])
    client = make_client(Access(tokens))
    assert client.get("/").status_code == 200
    assert client.get("/page/app.js").status_code == 200
    assert client.get("/api/v1/streams").status_code == 401
    assert client.post("/").status_code == 401


@pytest.mark.parametrize(
    "path", ["/page/", "/page/none.js", "/page/../page_api.py", "/page/vendor", "/index.html"]
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_files_are_small_and_their_modules_too() -> None:
    assert sum(file.stat().st_size for file in [*OURS, *THEIRS]) <= MOST_BYTES
    lines = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in OURS}
    assert {name: found for name, found in lines.items() if found > MOST_LINES} == {}


def test_what_comes_from_others_is_what_they_have_published() -> None:
    listed = dict(line.split()[::-1] for line in (FILES / "vendor.sha256").read_text().splitlines())
    assert listed == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in THEIRS}
    assert "uPlot.LICENSE" in listed


def test_no_file_asks_another_server() -> None:
    namespaces = {"http://www.w3.org/2000/svg"}
    for file in OURS:
        addresses = set(
            re.findall(r"\b(?:https?|wss?):/?/?[\w./-]*|(?<=[\"'(])//\w[\w.-]*", file.read_text())
        )
        assert addresses <= namespaces, file.name


def test_no_markup_is_made_of_data() -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc"
    for file in OURS:
        assert re.findall(ways, file.read_text()) == [], file.name


def test_every_file_that_a_file_names_is_there() -> None:
    for file in OURS:
        if file.suffix == ".js":
            imported = re.findall(r"^import .* from \"\./([\w.]+)\";$", file.read_text(), re.MULTILINE)
            assert [name for name in imported if not (FILES / name).is_file()] == [], file.name
    named = list(Links.of(FILES / "index.html"))
    assert [name for name in named if not (FILES / name.removeprefix("page/")).is_file()] == []
    assert "page/app.js" in named


def test_the_page_lists_every_kind_of_event_and_every_status_of_a_letter() -> None:
    assert quoted("log.js", "KINDS") == [kind.value for kind in Kind]
    assert quoted("states.js", "STORE_WORDS") == [word.value for word in StoreWord]
    statuses = quoted("filters.js", "STATUSES")
    assert statuses[::2] == [*STATUSES, ""]
    assert statuses[1::2] == [*STATUSES, "any"]


@pytest.mark.parametrize(
    ("shape", "colour", "words"),
    [
        ("●", "well", {"well"}),
        ("○", "muted", {"idle", "empty"}),
        ("▲", "warn", {"stale", "behind"}),
        ("◆", "odd", {"unknown"}),
        ("■", "bad", {"refusing", "blocked", "failing", "stalled", "stopped", "full", "refused", "away"}),
    ],
)
def test_a_word_of_health_has_a_shape_beside_its_colour(shape: str, colour: str, words: set[str]) -> None:
    style = (FILES / "style.css").read_text()
    known = {word.value for word in (*Word, *StoreWord)}
    (shaped,) = re.findall(rf'^(.*) {{ content: "{shape}" / ""; }}$', style, re.MULTILINE)
    assert set(re.findall(r"\.badge\.(\w+)::before", shaped)) == words
    (coloured,) = re.findall(
        rf"^(\.badge\..*) {{ background: .*; color: var\(--{colour}\); }}$", style, re.MULTILINE
    )
    assert set(re.findall(r"\.badge\.(\w+)", coloured)) & known == words


def quoted(name: str, constant: str) -> list[str]:
    """Return the strings in a list of a module."""
    found = re.search(rf"^const {constant} = (\[.*\]);$", (FILES / name).read_text(), re.MULTILINE)
    assert found is not None, f"{name} has no {constant}"
    return re.findall(r'"([^"]*)"', found[1])


def test_the_page_has_no_script_and_no_style_of_its_own() -> None:
    text = (FILES / "index.html").read_text()
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", text) == []
    assert re.findall(r"<script(?![^>]* src=)", text) == []


def test_a_package_has_every_file() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["lakehouse.serving"]
    for file in [*OURS, *THEIRS]:
        name = file.relative_to(FILES.parent).as_posix()
        assert any(fnmatch(name, one) and one.count("/") == name.count("/") for one in patterns), name


def test_rows_come_newest_first_where_they_are_wanted_so(client: TestClient, lake: ServedLake) -> None:
    for number in (2, 0, 3, 1):
        lake.write(METRICS_1M, [minute(start_ms=NOON_MS + number * MINUTE_MS)])
    path = "/api/v1/tables/metrics_1m/rows"

    def starts(query: str) -> list[int]:
        return [row["key"]["window_start"] for row in client.get(f"{path}?{query}").json()["rows"]]

    times = [NOON_MS + number * MINUTE_MS for number in range(4)]
    assert starts("") == starts("order=oldest") == times
    assert starts("order=newest") == times[::-1]
    first = client.get(f"{path}?order=newest&limit=3").json()
    assert starts(f"order=newest&limit=3&cursor={first['next']}") == times[:1]
    assert client.get(f"{path}?limit=3&cursor={first['next']}").status_code == 400
    assert client.get(f"{path}?order=largest").status_code == 422


def test_a_table_says_the_settings_that_it_depends_on(make_client: MakeClient) -> None:
    client = make_client(changes={"streams": {"sales": {"threshold": 1500, "notify": "every_update"}}})
    tables = {
        table["name"]: table
        for stream in client.get("/api/v1/streams").json()["streams"]
        for table in stream["tables"]
    }
    assert tables["product_sales"]["settings"] == {
        "streams.sales.threshold": "1500",
        "streams.sales.notify": "every_update",
    }
    assert tables["user_transactions_5m"]["settings"] == {}


class Links(HTMLParser):
    """A parser that collects the files a page names."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    @classmethod
    def of(cls, file: Path) -> Iterator[str]:
        parser = cls()
        parser.feed(file.read_text())
        yield from parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("src") if tag == "script" else given.get("href") if tag == "link" else None
        if name and not name.startswith("data:"):
            self.found.append(name)
