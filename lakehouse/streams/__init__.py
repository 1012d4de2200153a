"""The one registry of streams, under the settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from lakehouse.errors import SettingsError
from lakehouse.paths import is_on_s3
from lakehouse.settings import Settings, load_settings
from lakehouse.stream import Stream
from lakehouse.streams import calls, metrics, sales, transactions
from lakehouse.streams.kept_days import check_kept_days


def load(settings: Settings) -> tuple[Stream, ...]:
    """Return all streams, as the settings make them."""
    streams = (
        metrics.make(settings.grace_s, settings.quantile_k, settings.idle_after_s),
        calls.make(settings.call_gap_s, settings.call_grace_s),
        sales.make(settings.sales_threshold, settings.sales_notify),
        transactions.TRANSACTIONS,
    )
    return tuple(
        replace(
            stream,
            sources=tuple(
                replace(
                    source,
                    allowed_lateness_s=settings.allowed_lateness_s,
                    future_tolerance_s=settings.future_tolerance_s,
                )
                for source in stream.sources
            ),
        )
        for stream in streams
    )


BY_DEFAULT = load(Settings.model_construct())
"""The streams under default settings, for what no setting changes, such as names, topics and schemas."""


def choose(names: Sequence[str], settings: Settings) -> tuple[Stream, ...]:
    """Return the streams of these names in the registry's order; without names, all of them.

    Raises SettingsError, which lists the known names, for an unknown one.
    """
    streams = load(settings)
    known = {stream.name for stream in streams}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError(f"unknown stream {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return tuple(stream for stream in streams if not names or stream.name in names)


def read_settings() -> Settings:
    """Return the settings, as `load_settings` does, and let readers without a JVM find a lake on S3.

    Also refuses topics that no stream has, and days to keep rows for that their tables cannot have.
    """
    settings = load_settings()
    known = {topic for stream in BY_DEFAULT for topic in stream.topics}
    unknown = sorted(settings.topics.keys() - known)
    if unknown:
        raise SettingsError(f"topics: no stream has {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    check_kept_days(settings.kept_days, BY_DEFAULT)
    reach(settings, settings.lake)
    return settings


def reach(settings: Settings, place: str) -> None:
    """Let readers without a JVM find a lake at a place that may be on S3."""
    if is_on_s3(place):
        os.environ.update(settings.s3.for_environment())
