"""/data-docs: the pages of `lakehouse expect`, and no other file."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from lakehouse.operations.quality.pages import site
from lakehouse.serving.security.access import Access
from lakehouse.serving.security.tokens import Scope, Tokens
from tests.support.served_lakes import MakeClient, ServedLake

INDEX = "/data-docs/index.html"


@pytest.fixture
def pages(lake: ServedLake) -> None:
    """Write two pages, a file that is not a page, a page outside the directory, and a link to it."""
    directory = site(lake.settings.home)
    (directory / "validations" / "a").mkdir(parents=True)
    (directory / "index.html").write_text("all tables", encoding="utf-8")
    (directory / "validations" / "a" / "1.html").write_text("gold.a", encoding="utf-8")
    (directory / "notes.txt").write_text("notes", encoding="utf-8")
    (directory.parent / "outside.html").write_text("outside", encoding="utf-8")
    (directory / "link.html").symlink_to(directory.parent / "outside.html")


@pytest.mark.usefixtures("pages")
def test_the_pages_are_served_under_a_policy_that_blocks_scripts(client: TestClient) -> None:
    assert client.get("/api/v1/expectations").json()["dataDocs"] == INDEX
    found = client.get(INDEX)
    assert (found.text, found.headers["content-type"]) == ("all tables", "text/html; charset=utf-8")
    assert found.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert client.get("/data-docs/validations/a/1.html").text == "gold.a"


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize(
    "path",
    [
        "",
        "none.html",
        "notes.txt",
        "validations",
        "link.html",
        "..%2foutside.html",
        "%2fetc%2fhostname",
        "a%00.html",
    ],
)
def test_no_other_file_is_served(client: TestClient, path: str) -> None:
    found = client.get(f"/data-docs/{path}")
    assert (found.status_code, found.headers["content-type"]) == (404, "application/problem+json")


def test_before_the_first_check_there_is_no_page(client: TestClient) -> None:
    assert client.get("/api/v1/expectations").json()["dataDocs"] is None
    assert client.get(INDEX).status_code == 404
    unknown = client.get(f"{INDEX}?page=1")
    assert (unknown.status_code, unknown.json()["detail"]) == (400, "no parameter 'page': there are none")


@pytest.mark.usefixtures("pages")
def test_the_pages_need_a_token(make_client: MakeClient, lake: ServedLake) -> None:
    tokens = Tokens(lake.settings.home)
    headers = {"Authorization": f"Bearer {tokens.add('ada', [Scope.READ])}"}
    client = make_client(Access(tokens))
    assert client.get(INDEX).status_code == 401
    assert client.get(INDEX, headers=headers).status_code == 200
