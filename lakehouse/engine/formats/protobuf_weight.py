"""Measure the memory that a record takes once it is parsed.

A nested message can take as little as two bytes in a record, but in memory it takes space for every field
that its type defines. A record of one megabyte can therefore take gigabytes. Records of most message types
cannot grow that much. Large records of the other types are measured before they are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_LARGE, _SMALL = 16, 8  # bytes of memory for a text field, and for any other field
_EMPTY = 64  # bytes of memory for a message without fields
_LEAST = 2  # the minimum number of bytes that a nested message takes in a record
_VARINT, _LENGTH, _BEGIN, _END = 0, 2, 3, 4  # how values are encoded
_FIXED = {1: 8, 5: 4}
_CONTINUES, _LONGEST = 0x80, 63


def most_per_byte(parsed: Descriptor) -> float:
    """Return the maximum memory, in bytes, per byte of a record, not counting the outermost message."""
    known, waiting = dict[str, Descriptor](), [parsed]
    while waiting:
        for one in waiting.pop().fields:
            inner = one.message_type
            if inner is not None and inner.full_name not in known:
                known[inner.full_name] = inner
                waiting.append(inner)
    return max([_LARGE, *(_bytes_of(one) / _LEAST for one in known.values())])


class Scale:
    """Measures the memory that records of one parsed type take."""

    def __init__(self, parsed: Descriptor) -> None:
        self._parsed = parsed
        self._types: dict[str, tuple[int, dict[int, Descriptor]]] = {}

    def exceeds(self, body: bytes, most: int) -> bool:
        """Return whether the messages in a record take more than `most` bytes of memory."""
        size, _ = self._type(self._parsed)
        left = most - size
        waiting = [(0, len(body), self._parsed)]
        while waiting and left >= 0:
            for begin, end, inner in self._inner(body, *waiting.pop()):
                left -= self._type(inner)[0]
                if left < 0:
                    return True
                if begin < end:
                    waiting.append((begin, end, inner))
        return left < 0

    def _type(self, parsed: Descriptor) -> tuple[int, dict[int, Descriptor]]:
        """Return a message type's size, and the types of its message fields, keyed by number."""
        found = self._types.get(parsed.full_name)
        if found is None:
            inner = {one.number: one.message_type for one in parsed.fields if one.message_type is not None}
            found = self._types[parsed.full_name] = (_bytes_of(parsed), inner)
        return found

    def _inner(
        self, body: bytes, place: int, end: int, parsed: Descriptor
    ) -> Iterator[tuple[int, int, Descriptor]]:
        """Yield the messages nested in a message, each with its start and end (equal for a group)."""
        groups: list[Descriptor | None] = [parsed]
        while place < end and groups:
            tag, place = _varint(body, place, end)
            kind, here = tag & 7, groups[-1]
            one = None if here is None else self._type(here)[1].get(tag >> 3)
            if kind == _LENGTH:
                length, place = _varint(body, place, end)
                if one is not None and place + length <= end:
                    yield place, place + length, one
                place += length
            elif kind == _VARINT:
                _, place = _varint(body, place, end)
            elif kind == _BEGIN:
                groups.append(one)
                if one is not None:
                    yield place, place, one
            elif kind == _END:
                groups.pop()
            elif kind in _FIXED:
                place += _FIXED[kind]
            else:
                return  # malformed; the parser reports it


def _bytes_of(parsed: Descriptor) -> int:
    """Return the approximate memory, in bytes, of a message without values."""
    is_text = FieldDescriptor.CPPTYPE_STRING
    return _EMPTY + sum(_LARGE if one.cpp_type == is_text else _SMALL for one in parsed.fields)


def _varint(body: bytes, place: int, end: int) -> tuple[int, int]:
    """Return the number that begins at a position, and the position after the number."""
    number = shift = 0
    while place < end:
        byte = body[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < _CONTINUES or shift > _LONGEST:
            break
    return number, place
