"""Validation of the setting `kept_days`: tables and retention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lakehouse.common.errors import SettingsError
from lakehouse.streams.definition import Stream

_DAY_S = 24 * 3600
_SHARED = ("silver.dead_letters", "ops.events", "ops.expectation_results")


def check_kept_days(days: Mapping[str, int], streams: Sequence[Stream]) -> None:
    """Raise SettingsError for an unknown table, and where retained rows need rows that would be deleted."""
    rules = {name: reason for stream in streams for name, reason in _rules(stream, days)}
    known = {*rules, *_SHARED}
    unknown = sorted(days.keys() - known)
    if unknown:
        raise SettingsError(f"kept_days: there is no {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    for name in sorted(days):
        if (reason := rules.get(name)) is not None:
            raise SettingsError(f"kept_days: {name} {reason}")


def _rules(stream: Stream, days: Mapping[str, int]) -> Iterator[tuple[str, str | None]]:
    """Yield the stream's tables, each with the reason why it must keep rows; null: none."""
    for source in stream.sources:
        bronze, silver = f"bronze.{source.table}", f"silver.{source.table}"
        yield bronze, None
        needing = [
            table.name
            for table in stream.gold
            if source.table in table.reads and (table.time_columns is None or _DAY_S % (table.window_s or 1))
        ]
        if needing:
            yield silver, f"has to keep every row: gold.{needing[0]} is made of all of them"
        elif days.get(bronze, days.get(silver, 0) + 1) > days.get(silver, 0):
            yield silver, f"has to keep rows at least as long as {bronze}, whose records it is compared with"
        else:
            yield silver, None
    for table in stream.tables:
        is_timeless = table.time_columns is None
        yield f"gold.{table.name}", "has to keep every row: they have no time" if is_timeless else None
