"""Search what the stores contain to which gold is exported."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lakehouse.operations.erasure.report import Book, Until
from lakehouse.operations.erasure.searching import Found, Hits, Search, Values, chunked
from lakehouse.settings import Settings
from lakehouse.sinks.port import SinkKind, Stored


def search_store(kind: SinkKind, settings: Settings, search: Search, book: Book) -> None:
    """Search a store. If it cannot be searched, this is recorded in the book."""
    if kind.contents is None:
        book.miss(kind.name, kind.label, "this store offers no search; search it by its own means")
        return
    with book.searching(kind.name, kind.label) as amount, book.missing(kind.name, kind.label):
        for chunk in chunked(kind.contents(settings), lambda stored: sum(map(len, stored.values))):
            values = [value for one in chunk for value in one.values]
            amount.items += len(values)
            amount.bytes += sum(map(len, values))
            _search(kind.name, chunk, values, search, book)


def _search(where: str, chunk: Sequence[Stored], values: Sequence[bytes], search: Search, book: Book) -> None:
    """Search the values of a chunk."""
    owners = [one for one in chunk for _ in one.values]
    found = dict[int, Hits]()
    for (at, line), is_certain in search.in_values(Values.of(values)).items():
        found.setdefault(id(owners[at]), Hits()).add(Found({(at, line): is_certain}))
    for one in chunk:
        if id(one) in found:
            book.find((where, one.place, one.kind), one.part, found[id(one)], _until(one.until))


def _until(at: datetime | None) -> Until:
    return Until(None, "until it is deleted") if at is None else Until(at, "then it expires")
