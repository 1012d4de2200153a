"""A lake's streams, configured by the settings."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lakehouse.common.errors import SettingsError
from lakehouse.common.paths import is_on_s3
from lakehouse.settings import Settings, load_settings
from lakehouse.streams.builtin import TABLES
from lakehouse.streams.checks import check_names, check_topics
from lakehouse.streams.declared import built
from lakehouse.streams.definition import Stream
from lakehouse.streams.finding import found, with_defaults
from lakehouse.streams.keep_rows import check_keep_rows
from lakehouse.streams.loading import by_address
from lakehouse.streams.names import chosen_names


def load(settings: Settings) -> tuple[Stream, ...]:
    """Return all streams, configured by the settings.

    Raises SettingsError for a stream that cannot be found or built, or for a name or topic with two uses.
    """
    streams = tuple(found(settings))
    check_names(streams)
    check_topics(streams, settings)
    return streams


_DEFAULTS = Settings.model_construct()
BY_DEFAULT = tuple(with_defaults(built(name, table), _DEFAULTS) for name, table in TABLES.items())
"""The built-in streams with the default settings."""


def choose(names: Sequence[str], settings: Settings) -> tuple[Stream, ...]:
    """Return the streams with these names, in the order of `load`, or all streams if no names are given.

    For an unknown name, raises a SettingsError that lists the known names.
    """
    chosen = chosen_names(names, settings)
    return tuple(stream for stream in load(settings) if stream.name in chosen)


def choose_one(name: str, settings: Settings) -> Stream:
    """Return the stream with this name, or the stream at module:OBJECT, which need not be in the settings.

    Raises SettingsError for an unknown name, a failed import, and an object that is not a stream.
    """
    if ":" not in name:
        (stream,) = choose([name], settings)
        return stream
    stream = with_defaults(by_address(name, {}, f"the stream is {name}"), settings)
    check_names([stream])
    check_topics([stream], settings)
    return stream


def read_settings() -> Settings:
    """Return the settings. If the lake is on S3, also set the environment for readers without a JVM.

    Raises SettingsError as `load_settings` does, for a topic in `topics` that no stream has, and for an
    invalid `maintenance.keep_rows`. Settings for built-in streams' tables are valid even if those streams are
    not in use.
    """
    return checked(load_settings())


def checked(settings: Settings) -> Settings:
    """Check settings from `load_settings` against the streams, and return them; see `read_settings`."""
    streams = (*BY_DEFAULT, *load(settings))
    known = {topic for stream in streams for topic in stream.topics}
    if unknown := sorted(settings.topics.keys() - known):
        raise SettingsError(
            f"topics: no stream has the topic {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        )
    check_keep_rows(settings.maintenance.keep_rows_s, streams)
    reach(settings, settings.lake)
    return settings


def reach(settings: Settings, place: str) -> None:
    """Set the environment variables that readers without a JVM need to open a lake on S3."""
    if is_on_s3(place):
        os.environ.update(settings.s3.access.for_environment())
