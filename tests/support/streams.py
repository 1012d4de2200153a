"""The streams that tests are about, by name: under default settings, unless a test asks for others."""

from __future__ import annotations

from dataclasses import replace

from lakehouse.settings import Settings
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
    """Return the stream as the settings make it, with the tables that it has here."""
    (made,) = (one for one in load(settings) if one.name == stream.name)
    names = {table.name for table in stream.gold}
    return replace(made, gold=tuple(table for table in made.gold if table.name in names))


def tolerant(stream: Stream, future_tolerance_s: int) -> Stream:
    """Return the stream with this tolerance of event times ahead of the landing."""
    sources = (replace(source, future_tolerance_s=future_tolerance_s) for source in stream.sources)
    return replace(stream, sources=tuple(sources))
