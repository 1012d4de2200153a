"""The indexes by which a value names its message: in its schema's file, then in each message around it.

They lie after the schema's id: their count, then each, as varints in zigzag. A lone zero stands for the first
message. Confluent's older serializers (`use.deprecated.format`) write plain varints: what has a negative
number in zigzag can only be of these. The rest is read in zigzag, though `02 02` could be either.
"""

from __future__ import annotations

_MOST_BYTES, _MOST = 64, 32  # of all indexes, and so many of them: no compiler takes messages nested deeper
_CONTINUES = 0x80


def indexes_of(data: bytes) -> tuple[tuple[int, ...], int] | None:
    """Return the indexes that bytes begin with, and where they end; null if there are none."""
    return _read(data, is_zigzag=True) or _read(data, is_zigzag=False)


def _read(data: bytes, *, is_zigzag: bool) -> tuple[tuple[int, ...], int] | None:
    numbers, number, shift = list[int](), 0, 0
    for place, byte in enumerate(data[:_MOST_BYTES]):
        number |= (byte & ~_CONTINUES) << shift
        shift += 7
        if byte & _CONTINUES:
            continue
        numbers.append((number >> 1) ^ -(number & 1) if is_zigzag else number)
        if min(numbers) < 0 or numbers[0] > _MOST:
            return None
        if len(numbers) > numbers[0]:
            return tuple(numbers[1:]) or (0,), place + 1
        number, shift = 0, 0
    return None
