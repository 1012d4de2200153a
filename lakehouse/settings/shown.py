"""Settings as people see them: values as in the configuration file, secrets masked, with their origins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from math import isfinite
from typing import Any

from pydantic import SecretStr

from lakehouse.settings.fields import merged
from lakehouse.settings.keys import Key, all_keys
from lakehouse.settings.masking import masked
from lakehouse.settings.reading import Reading
from lakehouse.settings.wording import as_text

DEFAULT = "default"


@dataclass(frozen=True)
class ShownSetting:
    """A setting's key, its value as JSON, and its origin: a variable, a file, the services, or the default.

    A secret is masked; in a URL, only the password is masked. A missing value is an empty string.
    """

    key: str
    value: Any
    origin: str


def by_key(found: Reading) -> dict[str, ShownSetting]:
    """Return each setting by its key. A configuration table, such as `streams`, is one setting."""
    return {
        name: ShownSetting(name, _shown(key, key.of(found.settings)), found.origins.get(name, DEFAULT))
        for name, key in all_keys().items()
    }


def single(found: Reading, setting: ShownSetting) -> Iterator[ShownSetting]:
    """Yield a setting, or each value of a configuration table, such as streams.sales.threshold."""
    if not isinstance(setting.value, Mapping) or not setting.value:
        yield setting
        return
    for name, value in setting.value.items():
        key = f"{setting.key}.{name}"
        yield from single(found, ShownSetting(key, value, found.origins.get(key, setting.origin)))


def every_single(found: Reading, declared: Mapping[str, Mapping[str, Any]]) -> list[ShownSetting]:
    """Return every single value. The keys that `declared`, a table for each stream, sets are defaults."""
    shown = by_key(found)
    own = [one for setting in shown.values() for one in single(found, setting)]
    known = {one.key for one in own}
    whole = ShownSetting("streams", merged(_as_json(declared), shown["streams"].value), DEFAULT)
    streams = [one for one in single(Reading(found.settings, {}), whole) if one.key not in known]
    return [*own, *(one for one in streams if one.value != {})]


def _shown(key: Key, value: Any) -> Any:
    if isinstance(value, SecretStr):
        return masked(key, value.get_secret_value())
    if key.is_secret:
        return [masked(key, one.get_secret_value()) for one in value]
    text = as_text(key, value)
    return "" if text is None else _as_json(text)


def _as_json(value: Any) -> Any:
    """Return a value, as TOML or code can have it, as JSON: times are ISO 8601, infinite numbers are text."""
    if isinstance(value, Mapping):
        return {name: _as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_as_json, value))
    if isinstance(value, date | time):
        return value.isoformat().replace("+00:00", "Z")
    is_kept = value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))
    return value if is_kept else str(value)
