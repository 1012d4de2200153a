"""Reads settings from the environment, `lakehouse.toml` and defaults, in this order of precedence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from lakehouse.common.errors import SettingsError
from lakehouse.common.ownership import ForeignError, read_own
from lakehouse.settings.config_file import CONFIG_VARIABLE, read_config, say
from lakehouse.settings.keys import ENV_PREFIX, FILE_SUFFIX, Key, all_keys, variables
from lakehouse.settings.model import Settings
from lakehouse.settings.secrets import SecretFile
from lakehouse.settings.web import check_encryption
from lakehouse.settings.wording import explain, secret_in_file, unknown_variables, unreadable

CACHE_VARIABLE = "LAKEHOUSE_CACHE"
_RUNNING = "the running local services"
_URL_KEYS = {"redis.url", "postgres.url", "alerts.webhooks", "alerts.webhook_proxy"}
_PASSWORD = re.compile(r"//.*:.*@|[?&]\w*password=", re.DOTALL)

# Variables that Kubernetes sets in every container for a service named lakehouse or lakehouse-something.
_OF_KUBERNETES = re.compile(
    r"LAKEHOUSE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


@dataclass(frozen=True)
class Reading:
    """Settings, and for each key that is set where its value comes from: a variable, a file, or services."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings() -> Settings:
    """Read the environment and the configuration file, whose path is printed on standard error.

    Raises SettingsError, naming every offending key, for unknown keys and invalid values, and for a file that
    `read_config` refuses.
    """
    return read().settings


def read() -> Reading:
    """Read the settings as `load_settings` does, and return them with their origins."""
    _refuse_unknown_variables()
    path, given = read_config()
    _refuse_secrets(path, given)
    origins = {name: str(path.absolute()) for name in all_keys() if _lookup(given, name) is not None}
    values = _with_environment(given, origins)
    settings = _validated(values, path)
    running = _of_services(settings)
    if running:
        values = _merged(running, values)
        of_services = {name: _RUNNING for name in all_keys() if _lookup(running, name) is not None}
        origins = of_services | origins
        settings = _validated(values, path)
    settings = _with_defaults(settings)
    settings.kafka.access.check()
    settings.s3.access.check()
    check_encryption(settings)
    if given:
        say(path.absolute())
    return Reading(settings, origins)


def services_file(home: Path) -> Path:
    """Return the path of the file in which `lakehouse services up` records the endpoints of its services."""
    return home / "services.json"


def from_files(section: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Return a section's values, with the secret of a file for each key such as sasl_password_file."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = all_keys().get(f"{section}.{name.removesuffix(FILE_SUFFIX.lower())}")
        is_file = key is not None and key.is_secret and key.name != name
        found[key.name if key and is_file else name] = (
            SecretFile(Path(value), f"{section}.{name}") if is_file else value
        )
    return found


def is_of_kubernetes(name: str, value: str) -> bool:
    """Tell whether Kubernetes has set this variable, for a service whose name begins with lakehouse."""
    is_link = name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value)
    return bool(is_link or _OF_KUBERNETES.fullmatch(name))


def _validated(values: Mapping[str, Any], path: Path) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(explain(error, path)) from None


def _refuse_unknown_variables() -> None:
    known = variables().keys() | {CONFIG_VARIABLE, CACHE_VARIABLE}
    unknown = [
        name
        for name, value in os.environ.items()
        if name.startswith(ENV_PREFIX) and name not in known and not is_of_kubernetes(name, value)
    ]
    if unknown:
        raise SettingsError(unknown_variables(unknown, known))


def _refuse_secrets(path: Path, given: Mapping[str, Any]) -> None:
    """Raise SettingsError for a password, a key, or a URL with a password in the file."""
    for name, key in all_keys().items():
        value = _lookup(given, name)
        if not key.is_secret or not value:
            continue
        texts = value if isinstance(value, list) else [value]
        if name not in _URL_KEYS or any(_PASSWORD.search(str(text)) for text in texts):
            raise SettingsError(secret_in_file(key, path))


def _with_environment(given: Mapping[str, Any], origins: dict[str, str]) -> dict[str, Any]:
    """Return the file's values with the environment's over them, key by key, and note their origins."""
    values = deepcopy(dict(given))
    for name, key in all_keys().items():
        variable, file_variable = key.variable, key.file_variable
        is_given = variable in os.environ and not is_of_kubernetes(variable, os.environ[variable])
        is_file = key.is_secret and file_variable in os.environ
        if is_given and is_file:
            raise SettingsError(f"both {variable} and {file_variable} are set; set only one of them")
        if not is_given and not is_file:
            continue
        value = _from_file(key, Path(os.environ[file_variable])) if is_file else _from_variable(key)
        origins[name] = file_variable if is_file else variable
        if name == "streams" and isinstance(value, dict):
            value = _merged(values.get("streams", {}), value)
        section = values.setdefault(key.section, {}) if key.section else values
        if isinstance(section, dict):  # else the model says what is wrong
            section[key.name] = value
    return values


def _from_variable(key: Key) -> Any:
    text = os.environ[key.variable]
    if not key.is_json:
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(unreadable(key, text, error)) from None


def _from_file(key: Key, path: Path) -> Any:
    """Return a secret that is read again at each use, or several, one per line, that are read now."""
    secret = SecretFile(path, key.file_variable)
    text = secret.get_secret_value()
    return tuple(SecretStr(line) for line in text.splitlines() if line) if key.has_several else secret


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
    """Return the values that connect to the home's running services, where the settings name no others."""
    running, found = _running_services(settings.home), dict[str, Any]()
    kafka, redis = running.get("kafka"), running.get("redis")
    if kafka is not None and not settings.kafka.bootstrap_servers:
        found["kafka"] = from_files("kafka", kafka.settings) | {"bootstrap_servers": kafka.endpoint}
    if redis is not None and not settings.redis.url.get_secret_value():
        found["redis"] = {"url": redis.endpoint}
    return found


@dataclass(frozen=True)
class _Running:
    """A running local service: its endpoint, and the other settings of its section that connect to it."""

    endpoint: str
    settings: Mapping[str, str] = field(default_factory=dict)


def _running_services(home: Path) -> dict[str, _Running]:
    path = services_file(home)
    try:
        found = json.loads(read_own(path))
        return {name: _Running(one["endpoint"], one.get("settings", {})) for name, one in found.items()}
    except ForeignError as error:
        raise SettingsError(
            f"{path} is refused: {error}. It has the addresses of this home's services: make yourself the "
            "only user who may write it and its directory (chown, chmod go-w), or choose another "
            "LAKEHOUSE_HOME"
        ) from None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}  # no services were started here, or another program wrote the file


def _lookup(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key in nested values; null if it is not set."""
    section, _, key = name.rpartition(".")
    within = values.get(section) if section else values
    return within.get(key) if isinstance(within, Mapping) else None


def _merged(below: Any, above: Any) -> Any:
    """Return nested tables merged, the upper values over the lower; empty text does not count as a value."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        names = [*below, *(name for name in above if name not in below)]
        return {
            name: _merged(below[name], above[name])
            if name in below and name in above
            else above.get(name, below.get(name))
            for name in names
        }
    return below if above == "" else above
