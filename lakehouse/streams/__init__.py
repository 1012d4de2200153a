"""The one registry of streams."""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.errors import SettingsError
from lakehouse.settings import Settings, load_settings
from lakehouse.stream import Stream
from lakehouse.streams.calls import CALLS
from lakehouse.streams.kept_days import check_kept_days
from lakehouse.streams.metrics import METRICS
from lakehouse.streams.sales import SALES
from lakehouse.streams.transactions import TRANSACTIONS

STREAMS: tuple[Stream, ...] = (METRICS, CALLS, SALES, TRANSACTIONS)


def choose(names: Sequence[str]) -> tuple[Stream, ...]:
    """Return the streams of these names in the registry's order; without names, all of them.

    Raises SettingsError, which lists the known names, for an unknown one.
    """
    known = {stream.name for stream in STREAMS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError(f"unknown stream {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return tuple(stream for stream in STREAMS if not names or stream.name in names)


def read_settings() -> Settings:
    """Return the settings, as `load_settings` does.

    Also refuses topics that no stream has, and days to keep rows for that their tables cannot have.
    """
    settings = load_settings()
    known = {topic for stream in STREAMS for topic in stream.topics}
    unknown = sorted(settings.topics.keys() - known)
    if unknown:
        raise SettingsError(f"topics: no stream has {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    check_kept_days(settings.kept_days, STREAMS)
    return settings
