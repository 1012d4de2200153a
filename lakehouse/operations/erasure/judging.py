"""Judge a find: certain, to be confirmed by a person, or none.

A find is certain if the id stands alone in a text. It is not certain if letters or digits adjoin the id, as
in a longer name, or if few bytes were found in data that is not text. A whole number that adjoins another
digit is a different number, and a part of a UUID or digest is no id, unless it is too long for chance: then
the find is not certain. A number that Delta or lakehouse wrote under the name of a size, a time, an offset or
a version is no id.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass

from lakehouse.operations.erasure.subjects import Needle

SURE_BYTES = 6
"""Fewer bytes than these occur by chance in gigabytes of compressed data."""
_SURE_DIGITS = 12
"""Fewer digits than these occur by chance in longer numbers, UUIDs and digests."""
COUNTED = frozenset(
    {
        *("_commit_version", "batch_id", "cardinality", "createdTime", "deletionTimestamp", "lastUpdated"),
        *("minReaderVersion", "minWriterVersion", "modificationTime", "numRecords", "offset", "partition"),
        *("size", "sizeInBytes", "version"),
    }
)
"""Columns whose numbers are coordinates, sizes and times, and never ids of people."""

_LETTERS = frozenset([*range(0x80, 0x100), *(one for one in range(0x80) if chr(one).isalnum())])
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_KEY_BYTES = 80
_NUMBERED = re.compile(
    rb'"(?:num(?:\w*(?:Bytes|Directories|Files|Partitions|Records|Rows|Vectors)\w*|Batches|Metadata|Protocol)'
    rb"|\w*[tT]ime(?:stamp|Ms)?|\w*Bytes\w*|\w*Ms|\w*[vV]ersion|_generation|batchId|cardinality"
    rb'|createdTime|epochId|lastUpdated|offset|partition|size)\\*"\s*:\s*\\*"?$'
)
"""Matches a JSON key before a number that is a size, a time, a version or a coordinate."""
_HEXADECIMAL_BYTES = 128
_HEXADECIMAL = re.compile(
    rb"(?<![0-9a-f])(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32,})(?![0-9a-f])", re.IGNORECASE
)
_TRUNCATED = re.compile('(?:\x7f|\ufffd|\U0010ffff)?(?:\\\\*"|\\Z)'.encode())
"""Matches the end of a truncated text in statistics. A maximum ends with a character above all others."""


@dataclass(frozen=True)
class Find:
    """Bytes that were found in a value, which begins at `low` and ends at `high`."""

    data: bytes
    start: int
    end: int
    low: int
    high: int
    is_in_text: Callable[[], bool]


def judged(needle: Needle, find: Find) -> bool | None:
    """Return whether a find is certain, or None if it is none."""
    if not needle.is_text:
        return True
    if needle.is_prefix_sure is not None:
        is_cut = _TRUNCATED.match(find.data, find.end, find.high) is not None
        return needle.is_prefix_sure if is_cut else None
    if _is_in_hexadecimal(find):
        return _of_part(find)
    if needle.is_number and (verdict := _of_number(find)) is not True:
        return verdict
    before, after = find.data[max(find.low, find.start - 1) : find.start], find.data[find.end : find.high][:1]
    is_alone = _LETTERS.isdisjoint(before) and _LETTERS.isdisjoint(after)
    return is_alone and (find.end - find.start >= SURE_BYTES or find.is_in_text())


def looks_textual(value: bytes, *, is_whole: bool = True) -> bool:
    """Return whether a value is UTF-8 without control characters, except tabs and line ends.

    If it is not whole, its last character can be incomplete.
    """
    if _CONTROL.search(value):
        return False
    try:
        codecs.utf_8_decode(value, "strict", is_whole)
    except UnicodeDecodeError:
        return False
    return True


def _is_in_hexadecimal(find: Find) -> bool:
    """Return whether a find is a part of a UUID or a digest, such as those in names of files."""
    first = max(find.low, find.start - _HEXADECIMAL_BYTES)
    around = find.data[first : min(find.end + _HEXADECIMAL_BYTES, find.high)]
    spans = (one.span() for one in _HEXADECIMAL.finditer(around))
    start, end = find.start - first, find.end - first
    return any(low <= start and end <= high and high - low > end - start for low, high in spans)


def _of_part(find: Find) -> bool | None:
    """Judge a part of a longer number, UUID or digest, in which a short id occurs by chance."""
    return None if find.end - find.start < _SURE_DIGITS else False


def _of_number(find: Find) -> bool | None:
    """Judge digits: true for a number, false for what might be a part of another one, None for no number."""
    data, start, end = find.data, find.start, find.end
    before, after = data[max(find.low, start - 2) : start], data[end : min(end + 2, find.high)]
    if before[-1:].isdigit() or after[:1].isdigit():
        return _of_part(find) if find.is_in_text() else False
    if _NUMBERED.search(data[max(find.low, start - _KEY_BYTES) : start]):
        return None
    has_whole_part = before[-1:] == b"." and before[:-1].isdigit()
    has_fraction = after[:1] == b"." and after[1:].isdigit()
    return not (has_whole_part or has_fraction)
