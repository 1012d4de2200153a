"""Durations and sizes as users write them (`1h30m`, `512KB`), and durations for display (`1 h 30 min`)."""

from __future__ import annotations

import math
import re

_UNITS_S = {"w": 7 * 86_400, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_TENTHS_BELOW_S = 10
_UNITS_BYTES = {"GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10, "B": 1}
_PART = re.compile(r"(\d{1,12})([wdhms])", re.ASCII)
_DURATION = re.compile(rf"({_PART.pattern})+", re.ASCII)
_SIZE = re.compile(r"(\d{1,15}) ?([KMG]?B)", re.ASCII)


def parse_duration_s(text: str) -> int:
    """Return the number of seconds in a duration such as 90s, 15m, 1h30m, 7d or 2w.

    Units must be in descending order, each at most once. Anything else raises ValueError, even a number
    without a unit. The message states the expected form.
    """
    parts = [(int(number), unit) for number, unit in _PART.findall(text)] if _DURATION.fullmatch(text) else []
    units = [unit for _, unit in parts]
    if not parts or units != [unit for unit in _UNITS_S if unit in units]:
        raise ValueError(f"expected a duration, {_way_out(text, '90s, 15m, 1h30m or 7d', 's')}")
    return sum(number * _UNITS_S[unit] for number, unit in parts)


def show_duration(seconds: int) -> str:
    """Return a duration as text that `parse_duration_s` accepts, in the largest units: 5400 is 1h30m."""
    return "".join(f"{number}{unit}" for number, unit in _parts(seconds) if number) or "0s"


def told_s(seconds: float) -> str:
    """Return a measured duration as readable text, in its two largest units: 0.4 s, 47 min, 1 h 2 min.

    The web page shows durations in the same way (`seconds` in format.js).
    """
    if seconds < _TENTHS_BELOW_S:
        return f"{math.floor(max(seconds, 0.0) * 10 + 0.5) / 10:g} s"
    parts = _parts(int(seconds))
    first = next(place for place, (number, _) in enumerate(parts) if number)
    shown = parts[first : first + 2]
    return " ".join(f"{number} {'min' if unit == 'm' else unit}" for number, unit in shown if number)


def _parts(seconds: int) -> list[tuple[int, str]]:
    """Return the numbers of days, hours, minutes and seconds, each with its unit."""
    parts = []
    for unit, length_s in _UNITS_S.items():
        if unit != "w":  # 7d is more common than 1w
            number, seconds = divmod(seconds, length_s)
            parts.append((number, unit))
    return parts


def roughly_told_s(seconds: float) -> str:
    """Return a duration as `told_s` does, but only in the largest unit: 1 h."""
    return " ".join(told_s(seconds).split()[:2])


def parse_size_bytes(text: str) -> int:
    """Return the number of bytes in a size such as 100B, 512KB, 256MB or 2GB. 1KB is 1,024 bytes.

    Anything else raises ValueError, even a number without a unit. The message states the expected form.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a size, {_way_out(text, '512KB, 256MB or 2GB', 'MB')}")
    return int(found[1]) * _UNITS_BYTES[found[2]]


def show_size(size_bytes: int) -> str:
    """Return a size as text that `parse_size_bytes` accepts, in the largest unit that needs no fraction."""
    for unit, length_bytes in _UNITS_BYTES.items():
        if size_bytes >= length_bytes and size_bytes % length_bytes == 0:
            return f"{size_bytes // length_bytes}{unit}"
    return f"{size_bytes}B"


def _way_out(text: str, examples: str, unit: str) -> str:
    has_no_unit = re.fullmatch(r"\d{1,15}", text, re.ASCII)
    return f"such as {examples}" + (f"; {text} has no unit: write {text}{unit}" if has_no_unit else "")
