"""Computed moments stay within the range of a datetime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def shifted(moment: datetime, by: timedelta) -> datetime:
    """Return the moment (UTC) this much later, limited to the years 1 to 9999."""
    try:
        return moment + by
    except OverflowError:
        return _FIRST if by < timedelta(0) else _LAST
