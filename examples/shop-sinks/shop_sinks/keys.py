"""Read the keys of a table [sinks.NAME]."""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.sinks import Settings, SettingsError


def keys_of(settings: Settings, sink: str, *, required: str, optional: Sequence[str] = ()) -> dict[str, str]:
    """Return the keys of [sinks.SINK]. An optional key that is not set is missing in the result.

    Raises SettingsError, which names the key, if the required key is missing, a key is unknown, or a value is
    empty or not text.
    """
    given, known = settings.sinks[sink], (required, *optional)
    if required not in given:
        raise SettingsError(f"sinks.{sink}.{required} is not set")
    for name, value in given.items():
        if name not in known:
            raise SettingsError(f"sinks.{sink}.{name}: there is no such key; known keys: {', '.join(known)}")
        if not isinstance(value, str) or not value:
            raise SettingsError(f"sinks.{sink}.{name} must be a text that is not empty")
    return dict(given)
