"""Streams of a `lakehouse.toml`, for their tests."""

from __future__ import annotations

import tomllib

from lakehouse.common.errors import SettingsError
from lakehouse.streams.declared import built
from lakehouse.streams.definition import Stream


def declared(toml: str) -> dict[str, Stream]:
    """Return the streams that the text of a configuration file declares, by name.

    Tables that change a stream of an installed package, without `kind` or `python`, are left out. Raises
    SettingsError as every command does, for example for an unknown key.
    """
    try:
        tables = tomllib.loads(toml).get("streams", {})
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the text is not TOML: {error}") from None
    return {
        name: built(name, table) for name, table in tables.items() if {"kind", "python"}.intersection(table)
    }
