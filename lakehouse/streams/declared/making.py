"""Build the stream that a table `[streams.NAME]` declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.streams.declared.changing import changed
from lakehouse.streams.declared.keys import Changes, InPython, OfKind
from lakehouse.streams.declared.reading import read_table
from lakehouse.streams.definition import Stream
from lakehouse.streams.loading import by_address


def built(name: str, given: Mapping[str, Any]) -> Stream:
    """Return the stream that a table with `kind` or `python` declares, with all its keys applied.

    If keys are wrong, raises a SettingsError that names each of them, as `read_table` does.
    """
    keys = read_table(name, given)
    return changed(stream_of(name, keys), keys)


def stream_of(name: str, keys: Changes | OfKind) -> Stream:
    """Return the stream that the keys declare. `changed` applies the remaining keys to it.

    Raises SettingsError for a stream that cannot be built or imported, or that has a different name.
    """
    where = f"streams.{name}"
    if isinstance(keys, OfKind):
        try:
            return keys.stream(name)
        except ValueError as error:
            raise SettingsError(f"{where}: {error}") from error
    if not isinstance(keys, InPython):
        raise TypeError(f"{where} declares no stream")
    stream = by_address(keys.python, keys.arguments, f"{where}.python = {keys.python!r}")
    if stream.name != name:
        raise SettingsError(
            f"{where}.python: the stream at {keys.python} is called {stream.name}; rename its table to "
            f"[streams.{stream.name}]"
        )
    return stream
