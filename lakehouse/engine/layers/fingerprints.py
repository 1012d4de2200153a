"""Fingerprints of record ids, kept in memory to find possible repeats and the days to search for them.

A fingerprint is a 64-bit number: 48 bits of a hash, followed by a 16-bit day
(`lakehouse.engine.records.identity.fingerprint`). Ten million fingerprints take 80 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Packed: TypeAlias = npt.NDArray[np.int64]

LAST_DAY = 0xFFFF
_DAY = np.int64(0xFFFF)
_RECENT = 200_000  # the maximum number of fingerprints that each addition sorts again
_EPOCH, _ONE_DAY = datetime(1970, 1, 1, tzinfo=UTC), timedelta(days=1)


class Fingerprints:
    """A collection of fingerprints, possibly with duplicates.

    Sorts the given array in place instead of copying it.
    """

    def __init__(self, packed: Packed | None = None) -> None:
        self._still = _nothing() if packed is None else packed
        self._still.sort()
        self._recent = _nothing()

    def __len__(self) -> int:
        """Return the number of fingerprints."""
        return len(self._still) + len(self._recent)

    def add(self, packed: Packed) -> None:
        """Add fingerprints."""
        self._recent = np.sort(np.concatenate([self._recent, packed]))
        if len(self._recent) > _RECENT:
            self._still = np.sort(np.concatenate([self._still, self._recent]), kind="stable")
            self._recent = _nothing()

    def found(self, packed: Packed) -> npt.NDArray[np.bool_]:
        """Return, for each given fingerprint, whether the collection contains its hash."""
        first, end = self._places(self._still, packed)
        more_first, more_end = self._places(self._recent, packed)
        return (end > first) | (more_end > more_first)

    def days(self, packed: Packed) -> list[int]:
        """Return the sorted days of the fingerprints in the collection that have one of the given hashes."""
        found = [_days_among(held, *self._places(held, packed)) for held in (self._still, self._recent)]
        return [int(day) for day in np.unique(np.concatenate(found))]

    @staticmethod
    def _places(held: Packed, packed: Packed) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        return np.searchsorted(held, without_day(packed)), np.searchsorted(held, packed | _DAY, side="right")


def repeated(packed: Packed) -> npt.NDArray[np.bool_]:
    """Return, for each fingerprint, whether its hash occurs more than once."""
    _, place, counts = np.unique(packed >> np.int64(16), return_inverse=True, return_counts=True)
    found: npt.NDArray[np.bool_] = counts[place] > 1
    return found


def spans(days: Sequence[int]) -> list[tuple[datetime | None, datetime | None]]:
    """Return the time spans (UTC) covered by ascending days, joining adjacent days. None means unlimited."""
    found: list[tuple[int, int]] = []
    for day in days:
        if found and day == found[-1][1] + 1:
            found[-1] = (found[-1][0], day)
        else:
            found.append((day, day))
    return [
        (
            None if first == 0 else _EPOCH + first * _ONE_DAY,
            None if last == LAST_DAY else _EPOCH + (last + 1) * _ONE_DAY,
        )
        for first, last in found
    ]


def days_of(packed: Packed) -> Packed:
    """Return the day of each fingerprint."""
    days: Packed = packed & _DAY
    return days


def without_day(packed: Packed) -> Packed:
    """Return each fingerprint with its day set to 0, so that only the hash remains."""
    hashes: Packed = packed & ~_DAY
    return hashes


def _days_among(held: Packed, first: npt.NDArray[np.intp], end: npt.NDArray[np.intp]) -> Packed:
    lengths = end - first
    starts = np.repeat(first - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return days_of(held[starts + np.arange(int(lengths.sum()))])


def _nothing() -> Packed:
    return np.empty(0, np.int64)
