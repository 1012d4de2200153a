"""The indexes with which a Protobuf value names its message type, without the library of Protobuf.

They follow the schema's id: the index of the outermost message in the schema's file, then the index of each
nested message in its outer message. Their number precedes them, and all are zigzag varints. A single zero
means the first message. Older Confluent serializers (`use.deprecated.format`) write plain varints.
"""

from __future__ import annotations

from collections.abc import Iterator

_MOST_BYTES, _MOST = 64, 32  # the maximum number of bytes, and of indexes; compilers refuse deeper nesting
_CONTINUES = 0x80


def indexes_of(data: bytes) -> tuple[tuple[int, ...], int] | None:
    """Return the indexes at the start of the data, and the position after them, or None if there are none.

    Indexes are read as plain varints only if zigzag decoding would produce a negative number. All others are
    read as zigzag varints, although some of them, such as `02 02`, are valid in both encodings.
    """
    return next(readings_of(data), None)


def readings_of(data: bytes) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield what `indexes_of` returns in each encoding in which they are valid, zigzag varints first."""
    found = (_read(data, is_zigzag=True), _read(data, is_zigzag=False))
    return (one for one in found if one is not None)


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
