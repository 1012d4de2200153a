"""Stores of packages: searched if they yield their contents, and otherwise out of reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lakehouse.common.errors import SinkTroubleError
from lakehouse.operations.erasure.report import Book, Report
from lakehouse.operations.erasure.searching import Search
from lakehouse.operations.erasure.stores import search_store
from lakehouse.operations.erasure.subjects import subjects_in
from lakehouse.settings import Settings
from lakehouse.sinks import SinkKind, Stored

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def unused(_: object) -> Any:
    raise NotImplementedError


OTHER = SinkKind("other", "Other", is_set=bool, require=unused, make=unused, audit=unused)


def searched(kind: SinkKind, settings: Settings) -> Report:
    subjects = subjects_in(b"anna-4711\n")
    book = Book(subjects, lambda _: None)
    search_store(kind, settings, Search(subjects), book)
    return book.report(NOW, ())


def test_a_store_that_offers_no_search_is_out_of_reach(lake_settings: Settings) -> None:
    report = searched(OTHER, lake_settings)

    assert [(one.where, one.name) for one in report.unread] == [("other", "Other")]
    assert report.summary == "0 places; 1 out of reach"


def test_what_a_store_yields_is_searched_with_the_names_of_its_places(lake_settings: Settings) -> None:
    def contents(_: Settings) -> Iterator[Stored]:
        yield Stored("file of anna-4711", "file", "name", [b"file of anna-4711"])
        yield Stored("b", "file", "lines", [b"anna-4711", b"x", b"anna-4711"], NOW)
        yield Stored("b", "file", "lines", [b"of anna-4711"], NOW)
        yield Stored("c", "file", "lines", [b"anna-4711"], NOW)
        yield Stored("c", "file", "lines", [b"anna-4711"])  # the latest time counts: never

    report = searched(replace(OTHER, contents=contents), lake_settings)

    assert [(one.name, one.parts, str(one.until)) for one in report.places] == [
        ("file of <line 1>", {"name": 1}, "until it is deleted"),
        ("b", {"lines": 3}, "2026-11-30 00:00 UTC: then it expires"),
        ("c", {"lines": 2}, "until it is deleted"),
    ]
    assert report.searched[0].items == 7


@pytest.mark.parametrize("error", [SinkTroubleError, ValueError])
def test_an_error_of_a_store_is_shown_without_the_id(lake_settings: Settings, error: type[Exception]) -> None:
    def contents(_: Settings) -> Iterator[Stored]:
        yield Stored("a", "file", "lines", [b"x"])
        raise error("the row of anna-4711 is broken")

    report = searched(replace(OTHER, contents=contents), lake_settings)

    assert report.unread[0].why.endswith("the row of <line 1> is broken")
    assert not report.is_proven
