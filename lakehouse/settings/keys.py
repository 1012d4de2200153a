"""The keys of all settings, with their names in the file, in code and in the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from lakehouse.settings.fields import Section
from lakehouse.settings.model import Settings

ENV_PREFIX = "LAKEHOUSE_"
FILE_SUFFIX = "_FILE"


@dataclass(frozen=True)
class Key:
    """A key, such as `ttl` in the section `redis`. For a top-level key, the section is empty."""

    section: str
    name: str
    field: str
    info: FieldInfo

    def __str__(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def variable(self) -> str:
        """The key's environment variable, such as LAKEHOUSE_REDIS_TTL."""
        return ENV_PREFIX + str(self).replace(".", "_").upper()

    @property
    def file_variable(self) -> str:
        """The variable that names a file containing the secret."""
        return self.variable + FILE_SUFFIX

    @property
    def is_secret(self) -> bool:
        """True if the value is secret, or a URL that might contain a password."""
        return _has_secret(self.info.annotation)

    @property
    def has_several(self) -> bool:
        """True if the value is a list of secrets."""
        return self.is_secret and self.info.annotation is not SecretStr

    @property
    def is_json(self) -> bool:
        """True if the variable's value is JSON: a table, or a list of tables or secrets."""
        return self.has_several or _has_table(self.info.annotation)

    def of(self, settings: Settings) -> Any:
        """Return the key's value in these settings."""
        return getattr(getattr(settings, self.section) if self.section else settings, self.field)


@cache
def all_keys() -> Mapping[str, Key]:
    """Return all keys by full name, in the file's order: the top level comes first."""
    return MappingProxyType({str(key): key for key in (*_of_the_top(), *_of_sections())})


def section_names() -> tuple[str, ...]:
    """Return the names of the sections, in the file's order."""
    return tuple(name for name, info in Settings.model_fields.items() if _is_section(info))


def variables() -> Mapping[str, Key]:
    """Return the keys, keyed by variable, including the variables that name a file containing a secret."""
    found = {key.variable: key for key in all_keys().values()}
    return found | {key.file_variable: key for key in all_keys().values() if key.is_secret}


def _of_the_top() -> Iterator[Key]:
    for name, info in Settings.model_fields.items():
        if not _is_section(info):
            yield Key("", name, name, info)


def _of_sections() -> Iterator[Key]:
    for section in section_names():
        model: type[Section] = Settings.model_fields[section].annotation  # type: ignore[assignment]
        for field, info in model.model_fields.items():
            yield Key(section, info.alias or field, field, info)


def _is_section(info: FieldInfo) -> bool:
    return isinstance(info.annotation, type) and issubclass(info.annotation, Section)


def _has_secret(kind: Any) -> bool:
    return kind is SecretStr or any(_has_secret(one) for one in get_args(kind))


def _has_table(kind: Any) -> bool:
    return get_origin(kind) is dict or any(_has_table(one) for one in get_args(kind))
