"""Pagination: every list that grows with data or names has a limit, and `next` leads to the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query

from lakehouse.serving import parameters

MOST = 1_000
_T = TypeVar("_T")

Limit = Annotated[int, Query(ge=1, le=MOST, description="Maximum number of items.")]
Cursor = Annotated[
    str | None,
    Query(max_length=60_000, description="`next` of the previous page; keep the other parameters."),
]


@dataclass(frozen=True)
class Paging:
    """The page that a request asks for."""

    limit: int
    cursor: str | None

    def after(self, name: str, types: Sequence[type]) -> tuple[Any, ...] | None:
        """Return the cursor's values, null for the first page; raises Problem 400 for an invalid cursor."""
        return None if self.cursor is None else parameters.from_cursor(name, self.cursor, types)

    def of(self, name: str, items: Sequence[_T]) -> tuple[Sequence[_T], Mapping[str, str | None]]:
        """Return a page of a complete list, and `next`, whose cursor has the number of items before it."""
        (first,) = self.after(name, [int]) or (0,)
        end = first + self.limit
        following = parameters.cursor(name, [end]) if end < len(items) else None
        return items[first:end], {"next": following}


async def _paging(limit: Limit = MOST, cursor: Cursor = None) -> Paging:
    return Paging(limit, cursor)


Page = Annotated[Paging, Depends(_paging)]
