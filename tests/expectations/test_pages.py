"""Data Docs run and load nothing, whatever the checked rows contain."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import great_expectations as gx
import pandas as pd
import pytest
from great_expectations import ExpectationSuite, ValidationDefinition
from great_expectations.core.run_identifier import RunIdentifier

from lakehouse.operations.quality.checking import make_context, write_pages

HOSTILE = "<script src=https://example.org/x.js></script>"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LOADING = {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "form"}


class Seen(HTMLParser):
    """What a page would load or run, its policy, and its text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.policy = ""
        self.text = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag in LOADING or "url(" in given.get("style", ""):
            self.loads.append(tag)
        self.loads += [name for name in given if name.startswith("on") or name in {"src", "srcset", "action"}]

    def handle_data(self, data: str) -> None:
        if "url(" in data or "@import" in data:
            self.loads.append(data)
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the pages of a failing suite whose values include markup."""
    directory = tmp_path_factory.mktemp("pages")
    context = make_context(str(directory))
    expectations = [
        gx.expectations.ExpectColumnValuesToBeInSet(column="name", value_set=["known", HOSTILE + "2"]),
        gx.expectations.ExpectColumnValuesToNotBeNull(column="name"),
        gx.expectations.ExpectTableRowCountToBeBetween(min_value=1, max_value=3),
    ]
    suite = context.suites.add(ExpectationSuite(name="expectations.gold.names", expectations=expectations))
    asset = context.data_sources.add_pandas("lake").add_dataframe_asset("gold.names")
    batch = asset.add_batch_definition_whole_dataframe("all")
    definition = context.validation_definitions.add(
        ValidationDefinition(name="gold.names", data=batch, suite=suite)
    )
    now = datetime(2026, 11, 26, tzinfo=UTC)
    frame = pd.DataFrame({"name": ["known", HOSTILE, None]})
    definition.run(batch_parameters={"dataframe": frame}, run_id=RunIdentifier("version-3", now))
    write_pages(context, now)
    return directory / "gx" / "uncommitted" / "data_docs" / "local_site"


def test_no_page_loads_or_runs_anything(site: Path) -> None:
    pages = {page: Seen(page) for page in site.rglob("*.html")}
    assert sorted(page.relative_to(site).parts[0] for page in pages) == [
        "expectations",
        "index.html",
        "validations",
    ]
    assert {page: seen.loads for page, seen in pages.items() if seen.loads} == {}
    assert {seen.policy for seen in pages.values()} == {POLICY}


def test_values_are_text(site: Path) -> None:
    (validation,) = site.glob("validations/**/*.html")
    assert Seen(validation).text.count(HOSTILE) >= 2


def test_the_index_leads_to_every_page_and_they_lead_back(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    for page in (*site.glob("validations/**/*.html"), *site.glob("expectations/**/*.html")):
        assert f'href="{page.relative_to(site).as_posix()}"' in index
        up = "../" * (len(page.relative_to(site).parts) - 1)
        assert f'<a href="{up}index.html">' in page.read_text(encoding="utf-8")
