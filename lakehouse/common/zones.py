"""Names of time zones."""

from __future__ import annotations

from zoneinfo import ZoneInfo


def is_zone(name: str) -> bool:
    """Return whether Python's database contains a time zone with this IANA name."""
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return False
    return True
