"""The streams of a lake, configured by the settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from lakehouse.common.errors import SettingsError
from lakehouse.common.paths import is_on_s3
from lakehouse.settings import Settings, load_settings
from lakehouse.streams.checks import check_names, check_topics
from lakehouse.streams.definition import Source, Stream
from lakehouse.streams.finding import OWN, by_address, found
from lakehouse.streams.keep_rows import check_keep_rows
from lakehouse.streams.kinds.records import identified
from lakehouse.streams.overrides import check_emit, emitting
from lakehouse.streams.start import check_start


def load(settings: Settings) -> tuple[Stream, ...]:
    """Return all streams, configured by the settings.

    Raises SettingsError for a stream that cannot be found or built, and for names or topics with two uses.
    """
    streams = tuple(_under(settings, stream) for stream in found(settings))
    check_names(streams)
    check_topics(streams, settings)
    return streams


def _under(settings: Settings, stream: Stream) -> Stream:
    sources = (
        replace(
            _with_ids(settings, source),
            allowed_lateness_s=settings.stream_defaults.allowed_lateness_s,
            future_tolerance_s=settings.stream_defaults.future_tolerance_s,
            earliest_event_time=settings.stream_defaults.earliest_event_time,
            format=settings.formats.get(source.topic, source.format),
            registry=settings.schema_registry.access,
        )
        for source in stream.sources
    )
    try:
        return emitting(replace(stream, sources=tuple(sources)), settings.emit)
    except ValueError as error:
        raise SettingsError(f"unique_by, sequence_by, deletion_keys, deleted_if: {error}") from error


def _with_ids(settings: Settings, source: Source) -> Source:
    """Return the source with the ids, sequences and deletions that the settings configure for its topic."""
    unique_by = settings.unique_by.get(source.topic, source.unique_by)
    sequence_by = settings.sequence_by.get(source.topic, source.sequence_by)
    if (unique_by, sequence_by) != (source.unique_by, source.sequence_by):
        source = identified(source, unique_by, sequence_by)
    return replace(
        source,
        deletion_key=settings.deletion_keys.get(source.topic, source.deletion_key),
        deleted_if=settings.deleted_if.get(source.topic, source.deleted_if),
    )


_DEFAULTS = Settings.model_construct()
BY_DEFAULT = tuple(_under(_DEFAULTS, make(_DEFAULTS)) for make in OWN.values())
"""This package's own streams under default settings."""


def choose(names: Sequence[str], settings: Settings) -> tuple[Stream, ...]:
    """Return the streams with these names, in the order of `load`; without names, all of them.

    Raises SettingsError, which lists the known names, for an unknown name.
    """
    streams = load(settings)
    known = {stream.name for stream in streams}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError(
            f"unknown stream {', '.join(unknown)}; known: {', '.join(sorted(known))}. Add others with "
            "LAKEHOUSE_ONLY_STREAMS"
        )
    return tuple(stream for stream in streams if not names or stream.name in names)


def choose_one(name: str, settings: Settings) -> Stream:
    """Return the stream of this name, or the one at module:OBJECT, which the settings need not list.

    Raises SettingsError for an unknown name, a failed import, and an object that is not a stream.
    """
    if ":" not in name:
        (stream,) = choose([name], settings)
        return stream
    stream = _under(settings, by_address(name, settings, f"you have named {name}"))
    check_names([stream])
    check_topics([stream], settings)
    return stream


def read_settings() -> Settings:
    """Return the settings, as `load_settings` does, and set the environment for readers without a JVM on S3.

    Also raises SettingsError for topics that no stream has, and for invalid `maintenance.keep_rows`.
    Settings for this package's own streams remain valid while LAKEHOUSE_ONLY_STREAMS leaves them out.
    """
    settings = load_settings()
    streams = (*BY_DEFAULT, *load(settings))
    known = {topic for stream in streams for topic in stream.topics}
    by_topic = {"topics", "start", "formats", "unique_by", "sequence_by", "deletion_keys", "deleted_if"}
    for setting, given in ((name, getattr(settings, name)) for name in sorted(by_topic)):
        if unknown := sorted(given.keys() - known):
            raise SettingsError(
                f"{setting}: no stream has {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            )
    check_start(settings.start)
    check_keep_rows(settings.maintenance.keep_rows_s, streams)
    check_emit(settings.emit, streams)
    reach(settings, settings.lake)
    return settings


def reach(settings: Settings, place: str) -> None:
    """Set the environment variables with which readers without a JVM open a lake on S3."""
    if is_on_s3(place):
        os.environ.update(settings.s3.access.for_environment())
