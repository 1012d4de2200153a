"""Reads settings from the environment, `lakehouse.toml` and defaults, in this order of precedence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsError as UnreadableSetting

from lakehouse.common.errors import SettingsError
from lakehouse.common.ownership import ForeignError, read_own
from lakehouse.settings.config_file import CONFIG_VARIABLE, read_config, say
from lakehouse.settings.model import ENV_PREFIX, Settings, is_of_kubernetes
from lakehouse.settings.secrets import SUFFIX, read_files, secret_names
from lakehouse.settings.web import check_encryption
from lakehouse.settings.wording import explain, unknown_variables, unreadable

CACHE_VARIABLE = "LAKEHOUSE_CACHE"


def load_settings() -> Settings:
    """Read the environment and the configuration file, whose path is printed on standard error.

    Raises SettingsError, naming every offending key, for unknown keys and invalid values, and for a file that
    `read_config` refuses.
    """
    _refuse_unknown_variables()
    path, given = read_config()
    values = from_files(_with_files(given))
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError(explain(error, path)) from None
    except UnreadableSetting as error:
        raise SettingsError(unreadable(error)) from None
    settings = _with_defaults(settings)
    settings.kafka.check()
    settings.s3.check()
    check_encryption(settings)
    if given:
        say(path.absolute())
    return settings


def services_file(home: Path) -> Path:
    """Return the path of the file in which `lakehouse services up` records the endpoints of its services."""
    return home / "services.json"


def _refuse_unknown_variables() -> None:
    names = [*Settings.model_fields, *(name + SUFFIX for name in secret_names(Settings))]
    known = {ENV_PREFIX + name.upper() for name in names} | {CONFIG_VARIABLE, CACHE_VARIABLE}
    unknown = [
        name
        for name, value in os.environ.items()
        if name.startswith(ENV_PREFIX) and name not in known and not is_of_kubernetes(name, value)
    ]
    if unknown:
        raise SettingsError(unknown_variables(unknown, known))


def from_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with each key such as kafka_sasl_password_file replaced by the secret in its file."""
    return read_files(secret_names(Settings), values)


def _with_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the secret files named in the environment; raises SettingsError if a secret is set twice."""
    found = dict(values)
    for name in secret_names(Settings):
        key = name + SUFFIX
        if ENV_PREFIX + key.upper() in os.environ:
            found[key] = os.environ[ENV_PREFIX + key.upper()]
        if key in found and (ENV_PREFIX + name.upper() in os.environ or name in found):
            raise SettingsError(f"both {name} and {key} are set; set only one of them")
    return found


def _with_defaults(settings: Settings) -> Settings:
    running = _running_services(settings.home)
    update: dict[str, Any] = {}
    if not settings.lake:
        update["lake"] = str(settings.home / "lake")
    if not settings.kafka_bootstrap_servers:
        kafka = running.get("kafka", _Running())
        update["kafka_bootstrap_servers"] = kafka.endpoint or "127.0.0.1:9092"
        secured = from_files(kafka.settings)
        update |= {name: value for name, value in secured.items() if name not in settings.model_fields_set}
    if not settings.redis_url.get_secret_value():
        redis = running.get("redis", _Running())
        update["redis_url"] = SecretStr(redis.endpoint or "redis://127.0.0.1:6379/0")
    return settings.model_copy(update=update)


@dataclass(frozen=True)
class _Running:
    """A running local service: its endpoint, and the other settings that connect to it."""

    endpoint: str = ""
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
