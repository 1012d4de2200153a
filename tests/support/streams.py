"""The streams for tests, by name, with default settings unless a test needs others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lakehouse.common.quantities import parse_duration_s
from lakehouse.settings import Settings
from lakehouse.settings.fields import merged
from lakehouse.streams.builtin import TABLES
from lakehouse.streams.definition import Stream
from lakehouse.streams.registry import BY_DEFAULT, load

STREAMS = BY_DEFAULT
METRICS, CALLS, SALES, TRANSACTIONS = STREAMS
METRICS_1M, METRICS_SUMMARY_10M = METRICS.gold
(CALL_RECORDS,) = CALLS.gold
(PRODUCT_SALES,) = SALES.gold
(SALES_NOTIFICATIONS,) = PRODUCT_SALES.sides
(USER_TRANSACTIONS_5M,) = TRANSACTIONS.gold


def under(settings: Settings, stream: Stream) -> Stream:
    """Return the stream under the given settings, with the gold tables of the given stream.

    A table that the settings do not declare is used as it is.
    """
    (made,) = (one for one in load(settings) if one.name == stream.name)
    tables = {table.name: table for table in made.gold}
    return replace(made, gold=tuple(tables.get(table.name, table) for table in stream.gold))


def with_streams(settings: Settings, **tables: Mapping[str, Any]) -> Settings:
    """Return the settings with the given stream tables, which override existing ones."""
    return settings.changed({"streams": merged(settings.streams, tables)})


def key_of(settings: Settings, stream: str, key: str) -> Any:
    """Return the value of a key of a built-in stream under the settings."""
    return merged(TABLES[stream], settings.streams.get(stream, {})).get(key)


def seconds_of(settings: Settings, stream: str, key: str) -> int:
    """Return a duration of a built-in stream under the settings."""
    return parse_duration_s(key_of(settings, stream, key))


def tolerant(stream: Stream, future_tolerance_s: int) -> Stream:
    """Return the stream with this tolerance for event times after the landing time."""
    sources = (replace(source, future_tolerance_s=future_tolerance_s) for source in stream.sources)
    return replace(stream, sources=tuple(sources))
