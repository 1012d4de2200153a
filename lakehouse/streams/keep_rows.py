"""Validate the setting `maintenance.keep_rows`: its tables and their retention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lakehouse.common.errors import SettingsError
from lakehouse.streams.definition import Stream

_SHARED = ("silver.dead_letters", "ops.events", "ops.history", "ops.expectation_results")


def check_keep_rows(kept_s: Mapping[str, int], streams: Sequence[Stream]) -> None:
    """Raise SettingsError for an unknown table, and for a retention that would delete rows still needed."""
    rules = {name: reason for stream in streams for name, reason in _rules(stream, kept_s)}
    known = {*rules, *_SHARED}
    unknown = sorted(kept_s.keys() - known)
    if unknown:
        raise SettingsError(
            f"maintenance.keep_rows: there is no table {', '.join(unknown)}; known: "
            f"{', '.join(sorted(known))}"
        )
    for name in sorted(kept_s):
        if (reason := rules.get(name)) is not None:
            raise SettingsError(f"maintenance.keep_rows: {name} {reason}")


def _rules(stream: Stream, kept_s: Mapping[str, int]) -> Iterator[tuple[str, str | None]]:
    """Yield each of the stream's tables, with the reason why its rows must be kept, or None."""
    for source in stream.sources:
        bronze, silver = f"bronze.{source.table}", f"silver.{source.table}"
        yield bronze, None
        needing = [
            table.name
            for table in stream.gold
            if source.table in table.reads
            and (table.time_columns is None or (table.window is not None and not table.window.divides_days))
        ]
        if needing:
            yield silver, f"must keep every row: gold.{needing[0]} is computed from all of them"
        elif kept_s.get(bronze, kept_s.get(silver, 0) + 1) > kept_s.get(silver, 0):
            yield silver, f"must keep rows at least as long as {bronze}, because the two tables are compared"
        else:
            yield silver, None
    for table in stream.tables:
        is_timeless = table.time_columns is None
        yield f"gold.{table.name}", "must keep every row: its rows have no time" if is_timeless else None
