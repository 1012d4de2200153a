"""Spans of moments or numbers, each a first and a last value, as conditions on files are made of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

MOST_SPANS = 50
"""More of them take longer to compare with files than they spare."""

T = TypeVar("T", int, datetime)


def merged(spans: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    """Return the least spans, in their order, that cover the same; those that touch become one."""
    found: list[tuple[T, T]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
