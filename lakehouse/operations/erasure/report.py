"""The result of a search for subjects: the places that still have an id, and what could not be searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lakehouse.common.errors import LakehouseError, first_line
from lakehouse.operations.erasure.searching import Hits
from lakehouse.operations.erasure.subjects import Subjects

FORMAT = 1
"""The version of the report as JSON."""


@dataclass(frozen=True)
class Until:
    """When a place loses the ids by itself (UTC), at the earliest, and how. Without a time, it never does."""

    at: datetime | None
    how: str

    def __str__(self) -> str:
        return self.how if self.at is None else f"{self.at:%F %R} UTC: {self.how}"


@dataclass(frozen=True)
class Place:
    """A file, key, table or partition that has ids.

    where      where it is: lake, or the name of a store
    name       its name, in which `<line N>` stands for each id
    kind       what it is, such as "change feed"
    parts      the columns or parts that have an id, and how many values each has
    examples   a few of the values' places
    certain    how many values certainly have an id
    uncertain  how many values might have one; a person has to look
    lines      the lines of the ids
    """

    where: str
    name: str
    kind: str
    parts: Mapping[str, int]
    examples: tuple[str, ...]
    certain: int
    uncertain: int
    lines: tuple[int, ...]
    until: Until

    def as_json(self) -> dict[str, Any]:
        """Return the place as JSON."""
        until = None if self.until.at is None else self.until.at.isoformat(timespec="seconds")
        return {
            **{name: getattr(self, name) for name in ("where", "name", "kind", "certain", "uncertain")},
            "parts": dict(self.parts),
            "examples": list(self.examples),
            "lines": list(self.lines),
            "until": until,
            "how": self.until.how,
        }


@dataclass(frozen=True)
class Unread:
    """Something that could not be searched, and why."""

    where: str
    name: str
    why: str


@dataclass(frozen=True)
class Searched:
    """How much of a table, topic or store has been searched, and whether part of it was out of reach."""

    where: str
    name: str
    items: int
    bytes: int
    places: int
    has_unread: bool

    def __str__(self) -> str:
        found = f"{self.places:,} PLACES" if self.places else "nothing found"
        found += ", OUT OF REACH" if self.has_unread else ""
        return f"{self.where} {self.name}: {self.items:,} read, {self.bytes / 1e6:,.1f} MB: {found}"


@dataclass(frozen=True)
class Report:
    """The result of a search, and its time (UTC). `left_out` contains what was not to be searched."""

    at: datetime
    subjects: int
    searched: tuple[Searched, ...]
    places: tuple[Place, ...]
    unread: tuple[Unread, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found, and everything that was to be searched could be."""
        return not self.places and not self.unread

    @property
    def is_proven(self) -> bool:
        """Whether nothing was found, and everything was searched."""
        return self.is_clean and not self.left_out

    @property
    def summary(self) -> str:
        """The result in one line."""
        by_store = Counter(place.where for place in self.places)
        certain = sum(place.certain > 0 for place in self.places)
        said = [f"{len(self.places):,} place{'' if len(self.places) == 1 else 's'}"]
        if self.places:
            said[0] += f" in {', '.join(f'{name} ({count:,})' for name, count in by_store.items())}"
            said.append(f"{len(self.places) - certain:,} not certain")
        if self.unread:
            said.append(f"{len(self.unread):,} out of reach")
        if self.left_out:
            said.append(f"left out: {', '.join(self.left_out)}")
        return "; ".join(said)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON. It contains no id."""
        return {
            "format": FORMAT,
            "at": self.at.isoformat(timespec="seconds"),
            "subjects": self.subjects,
            "is_proven": self.is_proven,
            "summary": self.summary,
            "places": [one.as_json() for one in self.places],
            "out_of_reach": [vars(one) for one in self.unread],
            "searched": [vars(one) for one in self.searched],
            "notes": list(self.notes),
            "left_out": list(self.left_out),
        }


def _is_later(at: datetime | None, other: datetime | None) -> bool:
    """Return whether a time is later than another. None is later than all."""
    return other is not None and (at is None or at > other)


@dataclass
class Amount:
    """How many files, values or records have been read, and their size."""

    items: int = 0
    bytes: int = 0


@dataclass
class _Open:
    """A place while it is searched."""

    hits: Hits = field(default_factory=Hits)
    parts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    until: Until | None = None


MOST_EXAMPLES = 5
"""How many of a place's values are named."""


class Book:
    """Everything that a search has found so far. No id gets past it: all names and reasons are masked.

    `on_searched` is called with each table, topic or store that has been searched.
    """

    def __init__(self, subjects: Subjects, on_searched: Callable[[Searched], None]) -> None:
        self._subjects = subjects
        self._on_searched = on_searched
        self._open = dict[tuple[str, str, str], _Open]()
        self._searched = list[Searched]()
        self._unread = dict[Unread, None]()
        self._notes = dict[str, None]()

    def find(
        self,
        where: tuple[str, str, str],
        part: str,
        hits: Hits,
        until: Until,
        examples: Iterable[str] = (),
    ) -> None:
        """Record finds in a part of a place, given by its store, name and kind. The latest `until` counts."""
        if not hits:
            return
        store, name, kind = where
        place = self._open.setdefault((store, self._subjects.masked(name), kind), _Open())
        place.hits.update(hits)
        place.parts[self._subjects.masked(part)] += hits.certain.total() + hits.uncertain.total()
        place.examples += [self._subjects.masked(one) for one in examples]
        del place.examples[MOST_EXAMPLES:]
        if place.until is None or _is_later(until.at, place.until.at):
            place.until = until

    def miss(self, where: str, name: str, why: str) -> None:
        """Record something that could not be searched."""
        self._unread[Unread(where, self._subjects.masked(name), self._subjects.masked(why))] = None

    @contextmanager
    def missing(self, where: str, name: str) -> Iterator[None]:
        """If the block fails, record that this table, topic or store could not be searched completely."""
        try:
            yield
        except LakehouseError as error:
            self.miss(where, name, first_line(error))
        except Exception as error:  # noqa: BLE001 - whatever a client raises, for example for a broken record
            self.miss(where, name, f"{type(error).__name__}: {first_line(error)}")

    def note(self, text: str) -> None:
        """Record a remark that does not affect the result."""
        self._notes[self._subjects.masked(text)] = None

    @contextmanager
    def searching(self, where: str, name: str) -> Iterator[Amount]:
        """Record that a table, topic or store has been searched in the block, and how much of it."""
        amount, places, unread = Amount(), len(self._open), len(self._unread)
        yield amount
        found, has_unread = len(self._open) - places, len(self._unread) > unread
        name = self._subjects.masked(name)
        done = Searched(where, name, amount.items, amount.bytes, found, has_unread)
        self._searched.append(done)
        self._on_searched(done)

    def report(self, at: datetime, left_out: Sequence[str]) -> Report:
        """Return the report."""
        places = [
            Place(
                *where,
                dict(one.parts),
                tuple(one.examples),
                one.hits.certain.total(),
                one.hits.uncertain.total(),
                tuple(sorted(one.hits.lines)),
                one.until or Until(None, ""),
            )
            for where, one in self._open.items()
        ]
        return Report(
            at,
            self._subjects.count,
            tuple(self._searched),
            tuple(places),
            tuple(self._unread),
            tuple(self._notes),
            tuple(left_out),
        )
