"""Signs of life in a directory of the lake: the name of an empty file says until when a holder's term lasts.

The holder renews its term while alive. If it is killed, the term runs out.

Clocks may differ: the term is by the holder's. A process that looks again and again goes by its own monotonic
clock: a term that changes is being renewed, so its holder is alive, and one that has not changed for as long
as a term lasts is over. So a clock that is ahead, or was set back, keeps nobody waiting longer. Only the
first look goes by the wall clock.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakehouse.spark import storage

_LEFT_S = 3_600
_TERM = re.compile(r"(\d+)-(\w+)")  # until when, in ms since the epoch, and the holder
_seen: dict[tuple[str, str], _Seen] = {}  # by the directory and the holder
_noted: dict[tuple[str, str], set[int]] = {}
"""What this process has noted, by the same: so nobody has to look for it to remove it."""


@dataclass(frozen=True)
class _Seen:
    """A holder's terms, since when they have been the same by a monotonic clock, and whether they changed."""

    terms_ms: frozenset[int]
    since: float
    is_renewed: bool = False


@dataclass(frozen=True)
class Terms:
    """The terms of all holders in a directory; each lasts `length_s` from when it was noted."""

    spark: SparkSession
    directory: str
    length_s: float

    def renew(self, holder: str) -> None:
        """Note that the holder is alive, for another term from now; the earlier ones are removed."""
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
        """Remove what killed holders have left, an hour after its end."""
        for holder, terms_ms in self._all().items():
            self._remove(holder, terms_ms, before_ms=(time.time() - _LEFT_S) * 1000)

    def until(self, holder: str) -> float:
        """Return until when the holder's term lasts, in seconds since the epoch; 0 if it is over."""
        return self._until(holder, self._all().get(holder, ()))

    def alive(self) -> set[str]:
        """Return the holders whose terms last."""
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
        return found

    def _file(self, until_ms: int, holder: str) -> str:
        return f"{self.directory}/{until_ms}-{holder}"
