"""The indexes with which a value names its message type: in the schema's file, then in each outer message.

They follow the schema's id: their count, then each index, as zigzag varints. A single zero means the first
message. Confluent's older serializers (`use.deprecated.format`) write plain varints: data that would be
negative as zigzag must be of this kind. Everything else is read as zigzag, although `02 02` is ambiguous.
"""

from __future__ import annotations

_MOST_BYTES, _MOST = 64, 32  # bytes and count of indexes: compilers refuse deeper nesting
_CONTINUES = 0x80


def indexes_of(data: bytes) -> tuple[tuple[int, ...], int] | None:
    """Return the indexes at the beginning of bytes, and their end; null if there are none."""
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
