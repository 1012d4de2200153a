"""Read the environment with pydantic-settings. Variables ending in `_FILE` name files containing secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from lakehouse.common.errors import SettingsError
from lakehouse.settings.config_file import CONFIG_VARIABLE
from lakehouse.settings.keys import ENV_PREFIX, Key, all_keys, variables
from lakehouse.settings.model import Settings
from lakehouse.settings.secrets import SecretFile
from lakehouse.settings.wording import unknown_variables, unreadable

CACHE_VARIABLE = "LAKEHOUSE_CACHE"

# Variables that Kubernetes sets in every container for a service named lakehouse or lakehouse-something.
_OF_KUBERNETES = re.compile(
    r"LAKEHOUSE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


def read_environment() -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values that environment variables set, in sections as in the file, and each key's variable.

    Raises SettingsError for unknown variables, a table or list that is not JSON, a secret that is set by two
    variables, and a secret file that cannot be read.
    """
    _refuse_unknown()
    values = _Variables()()
    origins = {str(key): key.variable for key in _given()}
    for name, key in all_keys().items():
        if not key.is_secret or key.file_variable not in os.environ:
            continue
        if name in origins:
            raise SettingsError(f"both {key.variable} and {key.file_variable} are set; set only one of them")
        section = values.setdefault(key.section, {}) if key.section else values
        section[key.name] = _from_file(key, Path(os.environ[key.file_variable]))
        origins[name] = key.file_variable
    return values, origins


class _Model(Settings, BaseSettings):
    """The settings, with the naming scheme for environment variables: LAKEHOUSE_, the section and the key."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="_", env_nested_max_split=1)


class _Variables(EnvSettingsSource):
    """A settings source that reads only the known variables. Its errors name the variable."""

    def __init__(self) -> None:
        super().__init__(_Model)
        self.env_vars = {key.variable.lower(): os.environ[key.variable] for key in _given()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError as error:
            key = next(key for key in _given() if (key.name, os.environ[key.variable]) == (field_name, value))
            raise SettingsError(unreadable(key, value, error)) from None


def _given() -> Iterator[Key]:
    """Yield the keys whose variables (without _FILE) are set, except variables that Kubernetes has set."""
    for key in all_keys().values():
        value = os.environ.get(key.variable)
        if value is not None and not _is_of_kubernetes(key.variable, value):
            yield key


def _refuse_unknown() -> None:
    known = variables().keys() | {CONFIG_VARIABLE, CACHE_VARIABLE}
    unknown = [
        name
        for name, value in os.environ.items()
        if name.startswith(ENV_PREFIX) and name not in known and not _is_of_kubernetes(name, value)
    ]
    if unknown:
        raise SettingsError(unknown_variables(unknown, known))


def _is_of_kubernetes(name: str, value: str) -> bool:
    is_link = name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value)
    return bool(is_link or _OF_KUBERNETES.fullmatch(name))


def _from_file(key: Key, path: Path) -> Any:
    """Return a key's secret, which is read from the file on each use.

    For a key with several secrets, return a tuple instead. The file, with one secret per line, is then read
    only once.
    """
    secret = SecretFile(path, key.file_variable)
    text = secret.get_secret_value()
    return tuple(SecretStr(line) for line in text.splitlines() if line) if key.has_several else secret
