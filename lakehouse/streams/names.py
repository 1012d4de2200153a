"""The names of the streams in use.

They come from the settings alone, so this module does not import Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.metadata import EntryPoint

from lakehouse.common import packages
from lakehouse.common.errors import SettingsError
from lakehouse.common.nearest import no_such
from lakehouse.settings import Settings
from lakehouse.streams.builtin import TABLES

GROUP = "lakehouse.streams"


def offered() -> dict[str, EntryPoint]:
    """Return the entry points through which installed packages offer streams, keyed by stream name."""
    return packages.offered(GROUP)


def names_in_use(settings: Settings, offers: Collection[str]) -> list[str]:
    """Return the names of the streams in use, in order. `lakehouse.streams.finding.found` explains the rule.

    `offers` contains the names of streams in packages. Raises SettingsError if `only_streams` contains a name
    that is unknown or disabled.
    """
    tables = settings.streams
    every = list(dict.fromkeys((*TABLES, *sorted(offers), *tables)))
    off = {name for name, table in tables.items() if table.get("enabled") is False}
    for name in settings.only_streams:
        if name not in every:
            raise SettingsError(
                f"only_streams: {no_such('stream', name, every)}. To add a stream, declare it in "
                f"[streams.{name}]"
            )
        if name in off:
            raise SettingsError(f"only_streams names {name}, but streams.{name}.enabled is false")
    if settings.only_streams:
        return list(settings.only_streams)
    declares = any(name not in TABLES and name not in offers for name in tables)
    return [
        name for name in every if name not in off and (name not in TABLES or name in tables or not declares)
    ]


def chosen_names(names: Collection[str], settings: Settings) -> Sequence[str]:
    """Return these names in the order of the streams, or the names of all streams in use if none are given.

    For an unknown name, raises a SettingsError that lists the known names. Also raises the errors of
    `names_in_use`.
    """
    known = names_in_use(settings, offered())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SettingsError(
            f"unknown stream {', '.join(unknown)}; known: {', '.join(sorted(known))}. To add a stream, "
            f"declare it in [streams.{unknown[0]}]"
        )
    return [name for name in known if not names or name in names]
