"""Search every file below a lake's directory: data, change feeds, logs, and whatever else is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from lakehouse.common.errors import first_line
from lakehouse.operations.erasure import tables
from lakehouse.operations.erasure.files import search_file
from lakehouse.operations.erasure.report import Book
from lakehouse.operations.erasure.searching import Hits, Search, Values
from lakehouse.operations.erasure.tables import TableFiles
from lakehouse.storage.files import Files, Stored, each_file, files_of
from lakehouse.storage.tables.entries import LOG

LAKE = "lake"
_BESIDE = "(no table)"
_NAME = "its path"


@dataclass
class LakeScan:
    """A search of a lake. `kept` contains how long maintenance keeps old versions, keyed by `layer/table`."""

    root: str
    kept: Mapping[str, timedelta]
    search: Search
    book: Book

    def __post_init__(self) -> None:
        self._files: Files = files_of(self.root)
        self._seen = set[Stored]()

    def run(self) -> None:
        """Search the files that exist now. If some vanish in the meantime, also search those added since."""
        try:
            gone = self._round()
            if not self._seen:
                self.book.miss(LAKE, self.root, "there are no files here; is the setting lake right?")
            if gone:
                self._again(gone)
        except (OSError, pa.ArrowException) as error:  # a remote file system cannot be listed
            self.book.miss(LAKE, self.root, first_line(error))

    def _again(self, gone: list[str]) -> None:
        gone_since = self._round()
        self.book.note(
            f"{len(gone):,} files of the lake were removed during the search, such as {gone[0]}; the files "
            "that were added since have also been searched"
        )
        for name in gone_since:
            self.book.miss(LAKE, name, "it was added and removed during the search; search again")

    def _round(self) -> list[str]:
        """Search the files that have not been searched, and return those that vanished."""
        found = sorted(
            (one for one in each_file(self.root, self._not_listed) if one not in self._seen),
            key=lambda one: one.path,
        )
        names = {name for one in found if (name := _table_in(one.path)) is not None}
        names |= {name for one in self._seen if (name := _table_in(one.path)) is not None}
        gone = list[str]()
        for table, files in _by_table(found, names):
            gone += self._table(table, files)
        return gone

    def _table(self, table: str, files: list[Stored]) -> list[str]:
        gone = list[str]()
        with self.book.searching(LAKE, table.replace("/", ".") or _BESIDE) as amount:
            known = self._known(table) if table else tables.unknown(None)
            for file in files:
                self._seen.add(file)
                if not self._file(file, table, known):
                    gone.append(file.path)
                amount.items, amount.bytes = amount.items + 1, amount.bytes + file.size_bytes
        return gone

    def _known(self, table: str) -> TableFiles:
        kept = self.kept.get(table)
        try:
            return tables.read_table(f"{self.root.rstrip('/')}/{table}", kept)
        except Exception as error:  # noqa: BLE001 - whatever a damaged log or a file system raises
            self.book.miss(LAKE, table.replace("/", "."), f"its log: {first_line(error)}")
            return tables.unknown(kept)

    def _file(self, file: Stored, table: str, known: TableFiles) -> bool:
        """Search a file, and return false if it has vanished."""
        inner = Stored(file.path.removeprefix(f"{table}/"), file.size_bytes, file.modified_ms)
        kind = known.kind(inner.path)
        where, until = (LAKE, file.path, kind), known.until(kind, inner)
        named = Hits()
        path = file.path.encode(errors="surrogateescape")
        named.add(self.search.in_values(Values.of([path], is_text=True)))
        self.book.find(where, _NAME, named, until)
        try:
            for part, hits in search_file(self._files, file, self.search):
                self.book.find(where, part, hits, until)
        except Exception as error:  # noqa: BLE001 - whatever a damaged file raises
            if isinstance(error, FileNotFoundError) or not self._exists(file.path):
                return False
            self.book.miss(LAKE, file.path, f"{type(error).__name__}: {first_line(error)}")
        return True

    def _exists(self, name: str) -> bool:
        with suppress(OSError):
            return self._files.find(name) is not None
        return True

    def _not_listed(self, name: str, error: OSError) -> None:
        self.book.miss(LAKE, name, f"it cannot be listed: {first_line(error.strerror or error)}")


def _table_in(path: str) -> str | None:
    """Return the table to whose log a file belongs, as a path relative to the lake, or None."""
    table, separator, _ = path.partition(f"/{LOG}/")
    return table if separator else None


def _by_table(files: list[Stored], names: set[str]) -> Iterator[tuple[str, list[Stored]]]:
    """Yield each table's files, and under an empty name the files that are in no table's directory."""
    found: dict[str, list[Stored]] = {}
    for file in files:
        parts = file.path.split("/")
        above = ("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
        found.setdefault(next((one for one in above if one in names), ""), []).append(file)
    yield from sorted(found.items())
