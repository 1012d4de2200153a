"""Find any of many byte sequences in data, in one pass that costs about the same for one and for thousands.

numpy looks up the windows of 4 or 8 bytes at every place of the data in a table of the windows in which the
sequences end. Ids often begin alike, and rarely end alike, so few places remain. Only these are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES = 4
"""The length of the shortest sequence: a shorter one would occur in any file."""
_TABLE_BITS = 20
_FACTORS: dict[int, int] = {4: 0x9E3779B1, 8: 0x9E3779B97F4A7C15}  # odd, from the golden ratio
_Windows = NDArray[np.unsignedinteger[Any]]


class Matcher:
    """A search for byte sequences of at least LEAST_BYTES. Raises ValueError for a shorter one."""

    def __init__(self, needles: Iterable[bytes]) -> None:
        by_width = defaultdict[int, set[bytes]](set)
        for needle in needles:
            if len(needle) < LEAST_BYTES:
                raise ValueError("a sequence is too short to be searched for")
            by_width[8 if len(needle) >= 8 else 4].add(needle)  # noqa: PLR2004 - the two widths
        self._groups = [_Group(width, found) for width, found in sorted(by_width.items())]
        self.longest = max((len(one) for found in by_width.values() for one in found), default=0)

    def find(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield every place where a sequence begins, with the sequence, in no particular order."""
        for group in self._groups:
            yield from group.find(data)


class _Group:
    def __init__(self, width: int, needles: set[bytes]) -> None:
        self._width = width
        self._type = np.dtype(f"<u{width}")
        self._factor: Any = self._type.type(_FACTORS[width])
        self._shift: Any = self._type.type(8 * width - _TABLE_BITS)
        self._needles = needles
        lengths = defaultdict[int, set[int]](set)
        for needle in needles:
            lengths[int.from_bytes(needle[-width:], "little")].add(len(needle))
        self._lengths = {window: tuple(sorted(found)) for window, found in lengths.items()}
        self._windows: _Windows = np.array(sorted(lengths), dtype=self._type)
        self._table = np.zeros(1 << _TABLE_BITS, dtype=np.bool_)
        self._table[self._hashed(self._windows)] = True

    def _hashed(self, windows: _Windows) -> _Windows:
        hashed: _Windows = (windows * self._factor) >> self._shift
        return hashed

    def find(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        width, windows = self._width, self._windows
        for shift in range(min(width, len(data) - width + 1)):
            found = np.frombuffer(data, self._type, (len(data) - shift) // width, shift)
            places = np.flatnonzero(self._table.take(self._hashed(found).astype(np.intp, copy=False)))
            if not len(places):
                continue
            seen = found[places]
            at = np.searchsorted(windows, seen)
            at[at == len(windows)] = 0
            is_one = windows[at] == seen
            ends = places[is_one] * width + (shift + width)
            for end, window in zip(ends.tolist(), seen[is_one].tolist(), strict=True):
                for length in self._lengths[window]:
                    needle = data[end - length : end] if length <= end else b""
                    if needle in self._needles:
                        yield end - length, needle
