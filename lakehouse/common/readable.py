"""Convert raw bytes to printable text, and parse times given by users."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from lakehouse.common.errors import SettingsError
from lakehouse.common.printable import printable

_DURATION = re.compile(r"(\d{1,9})\s*(s|m|h|d|w)", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def readable(data: bytes | None, limit: int | None = None, *, length: int | None = None) -> str | None:
    """Return bytes as one line of text: UTF-8 with escapes, or hex if not UTF-8. For None, return None.

    Text longer than `limit` characters is truncated and followed by the full length in bytes. If `data` is
    already truncated, pass the full length as `length`.
    """
    if data is None:
        return None
    total = len(data) if length is None else length
    text = _text(data, whole=len(data) == total)
    shown = "0x" + bytes(data).hex() if text is None else printable(text)
    if len(data) == total and (limit is None or len(shown) <= limit):
        return shown
    return f"{shown[:limit]}… ({total:,} bytes)"


def parse_moment(text: str, now: datetime) -> datetime:
    """Return a UTC time from text: ISO 8601 with an offset, or an age such as 90s, 1h or 7d.

    Raises SettingsError for anything else.
    """
    found = _DURATION.fullmatch(text.strip())
    try:
        if found is not None:
            return now - timedelta(**{_UNITS[found[2]]: int(found[1])})
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise SettingsError(
        f"{text!r} is not a time; expected ISO 8601 with an offset, such as 2026-03-01T00:00:00Z, or an "
        "age such as 90s, 15m, 1h or 7d"
    )


def _text(data: bytes, *, whole: bool) -> str | None:
    """Return bytes as text, or None if they are not UTF-8. Unless `whole`, the end can be cut off."""
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        cut = not whole and error.start >= len(data) - 3
        return bytes(data[: error.start]).decode() if cut else None
