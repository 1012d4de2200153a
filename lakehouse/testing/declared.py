"""The streams declared in a `lakehouse.toml`, for use in tests."""

from __future__ import annotations

import tomllib

from lakehouse.common.errors import SettingsError
from lakehouse.streams.declared import built
from lakehouse.streams.definition import Stream


def declared(toml: str) -> dict[str, Stream]:
    """Return the streams that the text of a configuration file declares, keyed by name.

    A table without `kind` or `python` only changes a stream from an installed package, so it is omitted.
    Raises the same SettingsError as every command, for example for an unknown key.
    """
    try:
        tables = tomllib.loads(toml).get("streams", {})
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the text is not TOML: {error}") from None
    return {
        name: built(name, table) for name, table in tables.items() if {"kind", "python"}.intersection(table)
    }
