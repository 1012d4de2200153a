"""Find the streams that are built in, offered by installed packages, or declared in the settings.

A package offers a stream through an entry point with the stream's name in the group `lakehouse.streams`:

    [project.entry-points."lakehouse.streams"]
    orders = "shop.streams:ORDERS"

The object is a Stream, or a function that returns a Stream. The table `[streams.orders.arguments]` contains
the function's arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.common.packages import offer_of
from lakehouse.settings import Settings
from lakehouse.settings.fields import merged
from lakehouse.streams.builtin import TABLES
from lakehouse.streams.declared import Changes, InPython, OfKind, changed, read_table, stream_of
from lakehouse.streams.definition import Stream
from lakehouse.streams.loading import made
from lakehouse.streams.names import names_in_use, offered

Keys = Changes | OfKind


def found(settings: Settings) -> Iterator[Stream]:
    """Yield the streams in use, as the settings configure them.

    Streams from installed packages and declared streams are in use. Built-in streams are in use by default.
    If a table `[streams.NAME]` declares a new stream, a built-in stream is in use only if a table names it.
    If `only_streams` is set, it lists the streams in use instead. Raises SettingsError for tables that
    `read_table` refuses, naming every wrong key, for an unknown name, and for a stream that cannot be
    imported.
    """
    offers = offered()
    keys = _all_keys(settings.streams, offers)
    for name in names_in_use(settings, offers):
        given = keys.get(name)
        if isinstance(given, OfKind) or name not in offers or isinstance(given, InPython):
            given = given or read_table(name, TABLES[name])
            stream = stream_of(name, given)
        else:
            stream = _offered(offers[name], {} if given is None else given.arguments)
        stream = with_defaults(stream, settings)
        yield stream if given is None else changed(stream, given)


def with_defaults(stream: Stream, settings: Settings) -> Stream:
    """Return the stream, with defaults from the settings applied to every source."""
    defaults = settings.stream_defaults
    sources = (
        replace(
            source,
            allowed_lateness_s=defaults.allowed_lateness_s,
            future_tolerance_s=defaults.future_tolerance_s,
            earliest_event_time=defaults.earliest_event_time,
            registry=settings.schema_registry.access,
        )
        for source in stream.sources
    )
    return replace(stream, sources=tuple(sources))


def _all_keys(tables: Mapping[str, Mapping[str, Any]], offered: Mapping[str, EntryPoint]) -> dict[str, Keys]:
    """Return the keys in all tables `[streams.NAME]`. If any are wrong, raises one SettingsError for all."""
    keys, wrong = dict[str, Keys](), []
    for name, table in tables.items():
        try:
            keys[name] = _keys(name, table, offered)
        except SettingsError as error:
            wrong.append(str(error))
    if wrong:
        raise SettingsError("; ".join(wrong))
    return keys


def _keys(name: str, table: Mapping[str, Any], offered: Mapping[str, EntryPoint]) -> Keys:
    own = TABLES.get(name)
    if own is None:
        return read_table(name, table, known=(*TABLES, *offered))
    for key in ("kind", "python"):
        if table.get(key, own.get(key)) != own.get(key):
            raise SettingsError(
                f"streams.{name}.{key}: {name} is a built-in stream of the kind {own['kind']}; choose "
                "another name for your own stream"
            )
    return read_table(name, merged(own, table))


def _offered(entry: EntryPoint, arguments: Mapping[str, Any]) -> Stream:
    said = offer_of(entry)
    stream = made(said, entry.load, arguments)
    if stream.name != entry.name:
        raise SettingsError(
            f"{said} under the name {entry.name}, but the stream is called {stream.name}: name the entry "
            f"point {stream.name}"
        )
    return stream
