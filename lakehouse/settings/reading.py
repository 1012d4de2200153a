"""Read settings from the environment, `lakehouse.toml` and defaults, in this order of precedence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from lakehouse.common import web
from lakehouse.common.errors import SettingsError
from lakehouse.common.ownership import ForeignError, read_own
from lakehouse.settings.config_file import read_config, say
from lakehouse.settings.environment import read_environment
from lakehouse.settings.fields import merged
from lakehouse.settings.keys import FILE_SUFFIX, all_keys, section_names
from lakehouse.settings.masking import URL_KEYS
from lakehouse.settings.model import Settings
from lakehouse.settings.secrets import SecretFile
from lakehouse.settings.wording import explain, secret_in_file

_RUNNING = "the running local services"
_TABLES = ("streams", "sinks")
_PASSWORD = re.compile(r"//.*:.*@|[?&]\w*password=", re.DOTALL)


@dataclass(frozen=True)
class Reading:
    """The settings, and the origin of each value that is set: a variable, a file, or the local services.

    Each key in a table `[streams.NAME]` or `[sinks.NAME]` has its own origin, because a variable and the file
    can set different keys of the same table.
    """

    settings: Settings
    origins: Mapping[str, str]


def load_settings() -> Settings:
    """Read the environment and the configuration file. Print the file's path on standard error.

    Raises SettingsError for unknown keys and invalid values, which the message names, and for a file that
    `read_config` refuses.
    """
    return read().settings


def read() -> Reading:
    """Read the settings as `load_settings` does, and return them with the origins of their values."""
    environment, of_variables = read_environment()
    path, given = read_config()
    _refuse_secrets(path, given)
    values = _over(given, environment)
    origins = {name: str(path.absolute()) for name in all_keys() if _lookup(given, name) is not None}
    origins |= {
        key: origins[name] for name in _TABLES if name in origins for key in _single(name, given[name])
    }
    origins |= of_variables
    for name in (name for name in _TABLES if name in of_variables):
        origins |= dict.fromkeys(_single(name, environment[name]), of_variables[name])
    for name, value in _of_services(_validated(values, path)).items():
        if not _lookup(values, name):
            section, _, key = name.partition(".")
            values, origins[name] = _over(values, {section: {key: value}}), _RUNNING
    settings = _with_defaults(_validated(values, path))
    _refuse_passwords(settings)
    settings.kafka.access.check()
    settings.s3.access.check()
    _check_encryption(settings)
    if given:
        say(path.absolute())
    return Reading(settings, origins)


def services_file(home: Path) -> Path:
    """Return the path of the file in which `lakehouse services up` records its services' endpoints."""
    return home / "services.json"


def from_files(section: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Return a section's values. Secrets from files replace keys such as sasl_password_file."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = all_keys().get(f"{section}.{name.removesuffix(FILE_SUFFIX.lower())}")
        is_file = key is not None and key.is_secret and key.name != name
        found[key.name if key and is_file else name] = (
            SecretFile(Path(value), f"{section}.{name}") if is_file else value
        )
    return found


def _validated(values: Mapping[str, Any], path: Path) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(explain(error, path)) from None


def _refuse_secrets(path: Path, given: Mapping[str, Any]) -> None:
    """Raise SettingsError if the file contains a password, a key, or a URL with a password."""
    for name, key in all_keys().items():
        value = _lookup(given, name)
        if not key.is_secret or not value:
            continue
        texts = value if isinstance(value, list) else [value]
        if name not in URL_KEYS or any(_PASSWORD.search(str(text)) for text in texts):
            raise SettingsError(secret_in_file(key, path))


def _refuse_passwords(settings: Settings) -> None:
    """Raise SettingsError for a URL with a password, because a package's keys are shown unmasked."""
    tables: dict[str, Any] = {f"sinks.{name}": keys for name, keys in settings.sinks.items()}
    tables |= {f"streams.{name}.arguments": one.get("arguments") for name, one in settings.streams.items()}
    for table, keys in tables.items():
        for key, value in keys.items() if isinstance(keys, Mapping) else ():
            if _PASSWORD.search(str(value)):
                raise SettingsError(
                    f"{table}.{key} contains a password: use a key for the path of a file that contains the "
                    "secret"
                )


def _with_defaults(settings: Settings) -> Settings:
    update: dict[str, Any] = {}
    if not settings.lake:
        update["lake"] = str(settings.home / "lake")
    if not settings.kafka.bootstrap_servers:
        update["kafka.bootstrap_servers"] = "127.0.0.1:9092"
    if not settings.redis.url.get_secret_value():
        update["redis.url"] = SecretStr("redis://127.0.0.1:6379/0")
    return settings.changed(update)


def _of_services(settings: Settings) -> dict[str, Any]:
    """Return settings to connect to the local services in `home` whose address is not set explicitly."""
    running, found = _running_services(settings.home), dict[str, Any]()
    kafka, redis = running.get("kafka"), running.get("redis")
    if kafka is not None and not settings.kafka.bootstrap_servers:
        given = from_files("kafka", kafka.settings) | {"bootstrap_servers": kafka.endpoint}
        found |= {f"kafka.{name}": value for name, value in given.items()}
    if redis is not None and not settings.redis.url.get_secret_value():
        found["redis.url"] = redis.endpoint
    return found


@dataclass(frozen=True)
class _Running:
    """A running local service: its endpoint, and the other settings that its clients need."""

    endpoint: str
    settings: Mapping[str, str] = field(default_factory=dict)


def _running_services(home: Path) -> dict[str, _Running]:
    path = services_file(home)
    try:
        found = json.loads(read_own(path))
        return {name: _Running(one["endpoint"], one.get("settings", {})) for name, one in found.items()}
    except ForeignError as error:
        raise SettingsError(
            f"refusing to use {path}: {error}. It contains the local services' addresses. Make sure "
            "that only you can write to it and its directory (chown, chmod go-w), or set `home` "
            "(LAKEHOUSE_HOME) to a different directory"
        ) from None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}  # no services were started here, or another program wrote the file


def _lookup(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key in nested values, or None if the key is not set."""
    section, _, key = name.rpartition(".")
    within = values.get(section) if section else values
    return within.get(key) if isinstance(within, Mapping) else None


def _single(name: str, value: Any) -> Iterator[str]:
    """Yield the full names of the keys in a table, such as streams.sales.threshold."""
    if not isinstance(value, Mapping):
        yield name
        return
    for key, one in value.items():
        yield from _single(f"{name}.{key}", one)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in `below`, overridden key by key by the values in `above`.

    Tables are replaced, except that stream tables are merged. A section in `below` that is not a table is
    kept, so that the model refuses it.
    """
    values = dict(below)
    for name, one in above.items():
        if name in section_names():
            section = values.get(name, {})
            values[name] = {**section, **one} if isinstance(section, Mapping) else section
        else:
            values = merged(values, {name: one}) if name in _TABLES else {**values, name: one}
    return values


def _check_encryption(settings: Settings) -> None:
    """Raise SettingsError for an http:// URL to another machine that `http_hosts` does not allow."""
    for name, url in _urls(settings):
        if url and web.needs_permission(url, settings.http_hosts):
            host = web.host_of(url)
            raise SettingsError(
                f"{name} is http://{host}…, so passwords and data would be sent unencrypted: "
                f"use https://, or add {host} to http_hosts (LAKEHOUSE_HTTP_HOSTS)"
            )


def _urls(settings: Settings) -> Iterator[tuple[str, str]]:
    yield "schema_registry.url", settings.schema_registry.url
    yield "kafka.oauth_token_url", settings.kafka.oauth_token_url
    yield "s3.endpoint", settings.s3.endpoint
    for one in settings.alerts.webhooks:
        yield "alerts.webhooks", one.get_secret_value()
