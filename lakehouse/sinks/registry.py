"""A list of the stores that gold can be exported to, for store-independent code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakehouse.common.errors import SettingsError
from lakehouse.settings import Settings
from lakehouse.sinks.kafka import sink as to_kafka
from lakehouse.sinks.port import LeadKind, SinkKind
from lakehouse.sinks.postgres import sink as to_postgres
from lakehouse.sinks.redis import sink as to_redis
from lakehouse.streams.definition import MergedTable, Stream

LEAD: LeadKind = to_kafka.KIND
SINKS: tuple[SinkKind, ...] = (
    to_redis.KIND,
    to_postgres.KIND,
)


def labels() -> dict[str, str]:
    """Return every store's display name, keyed by store name."""
    return {LEAD.name: LEAD.label} | {kind.name: kind.label for kind in SINKS}


def used(settings: Settings) -> list[SinkKind]:
    """Return the sinks that are configured."""
    return [kind for kind in SINKS if kind.is_set(settings)]


def used_by(table: MergedTable, settings: Settings) -> list[SinkKind]:
    """Return the configured sinks that a table is exported to, in the order in which they are written.

    Raises SettingsError if the table names an unknown sink.
    """
    named = table.export.sinks
    if named is None:
        return used(settings)
    _require(table, named)
    return [kind for kind in used(settings) if kind.name in named]


def require_fit(stream: Stream) -> None:
    """Raise SettingsError if a table does not fit a store that it may be exported to.

    Stores that are not configured are also checked.
    """
    for table in stream.tables:
        named = table.export.sinks
        for kind in (kind for kind in SINKS if named is None or kind.name in named):
            for why in kind.unfit(table):
                others = ", ".join(repr(other.name) for other in SINKS if other is not kind)
                raise SettingsError(
                    f"stream {stream.name}: gold.{table.name} cannot be exported to {kind.label}: {why}. Fix "
                    f"this, or set streams.{stream.name}.gold.{table.name}.sinks = [{others}]"
                )


def needed_by(streams: Iterable[Stream], settings: Settings) -> list[SinkKind]:
    """Return the sinks that the streams' tables are exported to. Raises SettingsError like `used_by`."""
    found = {kind.name for stream in streams for table in stream.tables for kind in used_by(table, settings)}
    return [kind for kind in SINKS if kind.name in found]


def _require(table: MergedTable, named: Sequence[str]) -> None:
    known = {kind.name for kind in SINKS}
    unknown = sorted(set(named) - known)
    if unknown:
        raise SettingsError(
            f"gold.{table.name}: unknown sinks: {', '.join(unknown)}; known sinks: {', '.join(sorted(known))}"
        )
