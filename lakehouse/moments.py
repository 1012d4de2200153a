"""Moments that are computed stay within what a datetime can hold."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def shifted(moment: datetime, by: timedelta) -> datetime:
    """Return the moment (UTC) so much later, or the first or last one of the years 1 to 9999."""
    try:
        return moment + by
    except OverflowError:
        return _FIRST if by < timedelta(0) else _LAST


def merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return the least spans, in their order, that cover the same moments; both ends belong to a span."""
    found: list[tuple[datetime, datetime]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
