"""A list of the stores that gold can be exported to, for store-independent code.

Redis and PostgreSQL are built in. An installed package offers another store through an entry point with the
store's name in the group `lakehouse.sinks`; its object is a SinkKind:

    [project.entry-points."lakehouse.sinks"]
    http = "http_store:KIND"

The store is in use if the settings contain its table, `[sinks.http]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from lakehouse.common.errors import SettingsError, first_line
from lakehouse.common.nearest import no_such
from lakehouse.common.packages import offer_of, offered
from lakehouse.settings import Settings
from lakehouse.sinks.kafka import sink as to_kafka
from lakehouse.sinks.port import LeadKind, SinkKind
from lakehouse.sinks.postgres import sink as to_postgres
from lakehouse.sinks.redis import sink as to_redis
from lakehouse.streams.definition import MergedTable, Stream

GROUP = "lakehouse.sinks"
LEAD: LeadKind = to_kafka.KIND
BUILT_IN: tuple[SinkKind, ...] = (to_redis.KIND, to_postgres.KIND)


def known(settings: Settings) -> tuple[SinkKind, ...]:
    """Return the built-in sinks, and the packages' sinks that have a table in the settings.

    Raises SettingsError for a table of an unknown or built-in sink, and for a sink that cannot be imported.
    """
    return (*BUILT_IN, *map(_offered, settings.sinks))


def labels(settings: Settings) -> dict[str, str]:
    """Return every store's display name, keyed by store name."""
    return {LEAD.name: LEAD.label} | {kind.name: kind.label for kind in known(settings)}


def used(settings: Settings) -> list[SinkKind]:
    """Return the sinks that are configured."""
    return [kind for kind in known(settings) if kind.is_set(settings)]


def used_by(table: MergedTable, settings: Settings) -> list[SinkKind]:
    """Return the configured sinks that a table is exported to, in the order in which they are written.

    Raises SettingsError if the table names an unknown sink.
    """
    named = table.export.sinks
    if named is None:
        return used(settings)
    _require(table, named, settings)
    return [kind for kind in used(settings) if kind.name in named]


def require_fit(stream: Stream, settings: Settings) -> None:
    """Raise SettingsError if one of the stream's gold tables does not fit a store it can be exported to.

    Built-in stores that are not configured are also checked.
    """
    sinks = known(settings)
    for table in stream.tables:
        named = table.export.sinks
        for kind in (kind for kind in sinks if named is None or kind.name in named):
            for why in kind.unfit(table):
                others = ", ".join(repr(other.name) for other in sinks if other is not kind)
                raise SettingsError(
                    f"stream {stream.name}: gold.{table.name} cannot be exported to {kind.label}: {why}. Fix "
                    f"this, or set streams.{stream.name}.gold.{table.name}.sinks = [{others}]"
                )


def needed_by(streams: Iterable[Stream], settings: Settings) -> list[SinkKind]:
    """Return the sinks that the streams' tables are exported to. Raises SettingsError like `used_by`."""
    found = {kind.name for stream in streams for table in stream.tables for kind in used_by(table, settings)}
    return [kind for kind in known(settings) if kind.name in found]


def _require(table: MergedTable, named: Sequence[str], settings: Settings) -> None:
    names = {kind.name for kind in known(settings)}
    unknown = sorted(set(named) - names)
    if unknown:
        raise SettingsError(
            f"gold.{table.name}: unknown sinks: {', '.join(unknown)}; known sinks: "
            f"{', '.join(sorted(names))}. A sink from an installed package needs a table [sinks.NAME]"
        )


@cache
def _offered(name: str) -> SinkKind:
    """Return a package's sink by name. Exceptions in the package become SettingsErrors."""
    section, offers = f"sinks.{name}", offered(GROUP)
    if name in {LEAD.name, *(kind.name for kind in BUILT_IN)}:
        raise SettingsError(f"{section}: {name} is built in, and has its own section, [{name}]")
    if name not in offers:
        raise SettingsError(f"{section}: no installed package offers it: {no_such('sink', name, offers)}")
    said = f"{section}: {offer_of(offers[name])}"
    try:
        kind = offers[name].load()
    except Exception as error:
        raise SettingsError(f"{said}, which failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(kind, SinkKind):
        raise SettingsError(f"{said}, which is of type {type(kind).__name__}, not a lakehouse.sinks.SinkKind")
    if kind.name != name:
        raise SettingsError(f"{said} under the name {name}, but the sink is called {kind.name}")
    return kind
