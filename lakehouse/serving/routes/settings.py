"""`/api/v1/settings`: each setting of this server, with its value and its origin; secrets are masked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from lakehouse.common.errors import SettingsError
from lakehouse.serving.answers import plain
from lakehouse.serving.parameters import Page
from lakehouse.serving.reading.lookups import away
from lakehouse.serving.strictness import refuse_unknown
from lakehouse.settings import Settings
from lakehouse.settings.shown import ShownSetting
from lakehouse.sinks import registry as sinks
from lakehouse.streams.definition import Stream

StreamName = Annotated[
    str | None,
    Query(min_length=1, max_length=200, description="Only the settings that this stream depends on."),
]
_OF_ALL = frozenset(
    {
        "run.max_records",
        "run.max_bytes",
        "run.refused_limit",
        "telemetry.lag_limit",
        "maintenance.every",
        "maintenance.keep_versions",
        "kafka.bootstrap_servers",
        "kafka.dead_letter_topic",
    }
)
"""The settings on which every stream depends, besides `[stream_defaults]` and its stores."""


def router(settings: Settings, shown: Sequence[ShownSetting], streams: Sequence[Stream]) -> APIRouter:
    """Return the route for the settings; `shown` contains every single value."""
    routes = APIRouter(prefix="/api/v1", tags=["settings"])
    by_name = {stream.name: stream for stream in streams}

    @routes.get("/settings")
    async def all_settings(page: Page, stream: StreamName = None) -> Response:
        """Return each setting's key, its value as in the configuration file, and its origin as `from`.

        The origin is an environment variable, a file, `the running local services` or `default`. Secrets are
        masked; in a URL, only the password is masked. The values are those that this server read when it
        started. With `stream`, the stream's own keys come first.
        """
        found = shown
        if stream is not None:
            refuse_unknown("stream", [stream], by_name, "stream")
            try:
                found = settings_of(by_name[stream], shown, settings)
            except SettingsError as error:
                raise away(str(error)) from error
        rows, following = page.of(f"settings {stream or ''}", found)
        told = [{"key": one.key, "value": one.value, "from": one.origin} for one in rows]
        return plain({"settings": told, **following})

    return routes


def settings_of(stream: Stream, shown: Sequence[ShownSetting], settings: Settings) -> list[ShownSetting]:
    """Return the settings that a stream depends on, its own keys first.

    A default for all streams is omitted if the stream has its own value. Raises SettingsError if a table
    names an unknown sink.
    """
    own = f"streams.{stream.name}."
    keys = {one.key for one in shown}
    stores = [kind.name for kind in sinks.needed_by([stream], settings)]
    beginnings = (*(f"{name}." for name in stores), *(f"sinks.{name}." for name in stores))

    def is_used(key: str) -> bool:
        name = key.removeprefix("stream_defaults.")
        if name != key:
            return f"{own}{name}" not in keys
        return key in _OF_ALL or key in _of_tables(stream) or key.startswith((own, *beginnings))

    return sorted((one for one in shown if is_used(one.key)), key=lambda one: not one.key.startswith(own))


def _of_tables(stream: Stream) -> Collection[str]:
    """Return the keys for the stream's topics and for the retention of its tables."""
    inputs = [f"{layer}.{source.table}" for layer in ("bronze", "silver") for source in stream.sources]
    tables = [*inputs, *(f"gold.{table.name}" for table in stream.tables)]
    return {
        *(f"topics.{topic}" for topic in stream.topics),
        *(f"maintenance.keep_rows.{one}" for one in tables),
    }
