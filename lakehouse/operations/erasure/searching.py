"""Search many values for ids at once, in all their readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lakehouse.operations.erasure.judging import Find, judged, looks_textual
from lakehouse.operations.erasure.matching import Matcher
from lakehouse.operations.erasure.readings import has_escapes, readings
from lakehouse.operations.erasure.subjects import Lines, Subjects

_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNK_ITEMS = 10_000
_Item = TypeVar("_Item")


def chunked(items: Iterable[_Item], bytes_of: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Yield the items in lists that are worth a search, and fit in memory."""
    chunk, size = list[_Item](), 0
    for one in items:
        chunk.append(one)
        size += bytes_of(one)
        if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_ITEMS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class Found(dict[tuple[int, int], bool]):
    """Whether a find is certain, keyed by the value's number and the id's line."""

    def note(self, at: int, lines: Lines, *, is_certain: bool | None) -> None:
        """Record the finds of some ids in a value. None is no find."""
        if is_certain is not None:
            for line in lines:
                self[at, line] = self.get((at, line), False) or is_certain


@dataclass
class Hits:
    """The number of values that contain an id, keyed by the id's line."""

    certain: Counter[int] = field(default_factory=Counter)
    uncertain: Counter[int] = field(default_factory=Counter)

    def add(self, found: Found) -> None:
        """Count the finds of a search."""
        for (_, line), is_certain in found.items():
            (self.certain if is_certain else self.uncertain)[line] += 1

    def update(self, other: Hits) -> None:
        """Add other counts."""
        self.certain.update(other.certain)
        self.uncertain.update(other.uncertain)

    @property
    def lines(self) -> set[int]:
        """The lines of all ids that were found."""
        return {*self.certain, *self.uncertain}

    def __bool__(self) -> bool:
        """Return whether anything was found."""
        return bool(self.certain or self.uncertain)


@dataclass(frozen=True)
class Values:
    """Values that lie one after another in `data`, between each two offsets.

    `is_text` says whether all of them are text; if it is None, each value is examined.
    """

    data: bytes
    offsets: NDArray[np.int64]
    is_text: bool | None = None

    @classmethod
    def of(cls, values: Sequence[bytes], *, is_text: bool | None = None) -> Values:
        """Return the values, joined."""
        return cls(b"".join(values), np.cumsum([0, *map(len, values)], dtype=np.int64), is_text)

    def number_at(self, place: int) -> int:
        """Return the number of the value at a place of the data."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1

    def bounds(self, at: int) -> tuple[int, int]:
        """Return where a value begins and ends."""
        return int(self.offsets[at]), int(self.offsets[at + 1])

    def __getitem__(self, at: int) -> bytes:
        """Return a value."""
        low, high = self.bounds(at)
        return self.data[low:high]


@dataclass
class Search:
    """A search for subjects. `decoded` returns the numbers in a value, as `encoded.decoder` does."""

    subjects: Subjects
    decoded: Callable[[bytes], Mapping[int, bool] | None] = lambda _value: {}
    undecoded: int = 0
    """How many values begin with a schema's id, and could not be decoded."""
    numbers_of: dict[pa.DataType, pa.Array | None] = field(default_factory=dict)
    """The ids that are whole numbers, as arrays of the columns' types."""

    def __post_init__(self) -> None:
        self._packed = Matcher(self.subjects.packed)
        self._whole_lengths = sorted({len(one) for one in self.subjects.wholes})

    def in_values(self, values: Values) -> Found:
        """Search values in all their readings, and for the numbers in them."""
        found = Found()
        self._plain(values, found)
        self._whole(values, found)
        if self.subjects.numbers and values.is_text is None and values.data:
            self._decoded(values, found)
            self._undecoded(values, found)
        if has_escapes(values.data):
            self._escaped(values, found)
        return found

    def in_window(self, data: bytes, *, is_first: bool, is_last: bool, least: int = 0) -> Found:
        """Search a part of data that is not text.

        With `least`, the data is compressed: only sequences of at least so many bytes count, and there are no
        escapes. An id that touches an inner edge of the window is ignored: windows overlap, so another one
        contains it.
        """
        found = Found()
        for text in (data,) if least else readings(data):
            for start, sequence in self.subjects.matcher.find(text):
                end, needle = start + len(sequence), self.subjects.needles[sequence]
                is_cut = (start == 0 and not is_first) or (end == len(text) and not is_last)
                if not is_cut and len(sequence) >= least:
                    find = Find(text, start, end, 0, len(text), lambda: False)
                    found.note(0, needle.lines, is_certain=judged(needle, find))
        return found

    def _plain(self, values: Values, found: Found, numbers: Sequence[int] | None = None) -> None:
        """Search the bytes of values, whose numbers in the result are `numbers` or else their places."""
        texts = dict[int, bool]()
        for start, sequence in self.subjects.matcher.find(values.data):
            at, end = values.number_at(start), start + len(sequence)
            low, high = values.bounds(at)
            if end > high:
                continue

            def is_in_text(at: int = at) -> bool:
                if at not in texts:
                    texts[at] = looks_textual(values[at]) if values.is_text is None else values.is_text
                return texts[at]

            needle = self.subjects.needles[sequence]
            is_certain = judged(needle, Find(values.data, start, end, low, high, is_in_text))
            found.note(at if numbers is None else numbers[at], needle.lines, is_certain=is_certain)

    def _whole(self, values: Values, found: Found) -> None:
        lengths = np.diff(values.offsets)
        for length in self._whole_lengths:
            for at in np.flatnonzero(lengths == length).tolist():
                if (lines := self.subjects.wholes.get(values[at])) is not None:
                    found.note(at, lines, is_certain=True)

    def _escaped(self, values: Values, found: Found) -> None:
        """Search the other readings of the values that have any."""
        seen = np.frombuffer(values.data, np.uint8)
        places = np.flatnonzero((seen == ord("\\")) | (seen == ord("%")))
        texts, numbers = list[bytes](), list[int]()
        for at in np.unique(np.searchsorted(values.offsets, places, side="right") - 1).tolist():
            _, *others = readings(values[at])
            texts += others
            numbers += [at] * len(others)
        if texts:
            self._plain(Values.of(texts, is_text=values.is_text), found, numbers)

    def _decoded(self, values: Values, found: Found) -> None:
        """Look for numbers in the values that begin with a zero byte and a schema's id."""
        numbers = np.flatnonzero(np.diff(values.offsets) > 0)
        first = np.frombuffer(values.data, np.uint8)[values.offsets[:-1][numbers]]
        for at in numbers[first == 0].tolist():
            decoded = self.decoded(values[at])
            if decoded is None:
                self.undecoded += 1
                continue
            for number, is_certain in decoded.items():
                if (lines := self.subjects.numbers.get(number)) is not None:
                    found.note(at, lines, is_certain=is_certain)

    def _undecoded(self, values: Values, found: Found) -> None:
        """Look for packed numbers in values that are not text."""
        for start, sequence in self._packed.find(values.data):
            at = values.number_at(start)
            if start + len(sequence) <= values.bounds(at)[1] and not looks_textual(values[at]):
                found.note(at, self.subjects.packed[sequence], is_certain=False)
