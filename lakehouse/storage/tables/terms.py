"""Heartbeats in a directory of the lake: empty files whose names contain the end of a holder's term.

The holder renews its term while it is running. If it is killed, the term expires.

Clocks can differ, and a term's end is a time on the holder's clock. A process that checks repeatedly
therefore uses its own monotonic clock. If a term changes, its holder is alive and has renewed it. If a term
remains unchanged for its full length, it has expired. Thus, a clock that is fast or was set back does not
make a process wait longer. Only the first check uses the wall clock.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakehouse.common.memory import on_forget
from lakehouse.storage.spark import files as storage

_LEFT_S = 3_600
_TERM = re.compile(r"(\d+)-(\w+)")  # the term's end, in ms since the epoch, and the holder
_seen: dict[tuple[str, str], _Seen] = {}  # keyed by directory and holder
_noted: dict[tuple[str, str], set[int]] = {}
"""The ends of this process's own terms, keyed like `_seen`, to remove terms without listing the directory."""
on_forget(_seen.clear)
on_forget(_noted.clear)


@dataclass(frozen=True)
class _Seen:
    """The terms of a holder, when they last changed (monotonic time), and whether they ever changed."""

    terms_ms: frozenset[int]
    since: float
    is_renewed: bool = False


@dataclass(frozen=True)
class Terms:
    """The terms of all holders in a directory. Each term lasts `length_s` seconds from its renewal."""

    spark: SparkSession
    directory: str
    length_s: float

    def renew(self, holder: str) -> None:
        """Begin a new term for the holder, and remove its earlier terms."""
        until_ms = int((time.time() + self.length_s) * 1000)
        storage.write_text(self.spark, self._file(until_ms, holder), "")
        noted = _noted.get((self.directory, holder), set())
        self._remove(holder, noted, before_ms=until_ms)
        _noted[self.directory, holder] = {until_ms, *(term for term in noted if term > until_ms)}

    def forget(self, holder: str) -> None:
        """Remove the holder's terms."""
        self._remove(holder, self._all().get(holder, ()), before_ms=math.inf)
        _noted.pop((self.directory, holder), None)

    def forget_the_dead(self) -> None:
        """Remove terms that ended more than an hour ago; their holders were killed."""
        for holder, terms_ms in self._all().items():
            self._remove(holder, terms_ms, before_ms=(time.time() - _LEFT_S) * 1000)

    def until(self, holder: str) -> float:
        """Return the end of the holder's term, in seconds since the epoch, or 0 if it has expired."""
        return self._until(holder, self._all().get(holder, ()))

    def alive(self) -> set[str]:
        """Return the holders whose terms have not expired."""
        return {holder for holder, terms_ms in self._all().items() if self._until(holder, terms_ms)}

    def _until(self, holder: str, terms: Collection[int]) -> float:
        terms_ms, now, key = frozenset(terms), time.monotonic(), (self.directory, holder)
        seen = _seen.get(key) or _Seen(terms_ms, now)
        if seen.terms_ms != terms_ms:
            seen = _Seen(terms_ms, now, is_renewed=True)
        _seen[key] = seen
        until = max(terms_ms, default=0) / 1000
        is_valid = (seen.is_renewed or until > time.time()) and now - seen.since < self.length_s
        return until if is_valid else 0.0

    def _remove(self, holder: str, terms_ms: Collection[int], *, before_ms: float) -> None:
        for until_ms in terms_ms:
            if until_ms < before_ms:
                storage.delete(self.spark, self._file(until_ms, holder))

    def _all(self) -> dict[str, list[int]]:
        found = defaultdict[str, list[int]](list)
        for term in map(_TERM.fullmatch, storage.names(self.spark, self.directory)):
            if term is not None:
                found[term[2]].append(int(term[1]))
        for directory, holder in list(_seen):
            if directory == self.directory and holder not in found:
                _seen.pop((directory, holder), None)  # no later holder has the same name
        return found

    def _file(self, until_ms: int, holder: str) -> str:
        return f"{self.directory}/{until_ms}-{holder}"
