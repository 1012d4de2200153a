"""Spans of moments or numbers, each a first and a last value, for conditions on files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

MOST_SPANS = 50
"""Comparing more of them with files takes longer than it saves."""

T = TypeVar("T", int, datetime)


def merged(spans: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    """Return the fewest spans, in order, that cover the same; adjacent ones become one."""
    found: list[tuple[T, T]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
