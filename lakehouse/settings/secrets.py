"""Secrets in files, such as Kubernetes mounts: `LAKEHOUSE_REDIS_URL_FILE` names the file of redis_url."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr

from lakehouse.common.errors import SettingsError

SUFFIX = "_file"


class SecretFile(SecretStr):
    """A secret that is read from its file at each use, so that it can be rotated."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        super().__init__("")

    def get_secret_value(self) -> str:
        """Return the file's text without trailing line breaks; raises SettingsError if it cannot be read."""
        try:
            return self._path.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self._name}: {self._path} cannot be read: {error}") from None


def secret_names(model: type[BaseModel]) -> dict[str, bool]:
    """Return the model's secret fields by name; true if the field takes several secrets."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind is not SecretStr for name, kind in kinds.items() if _is_secret(kind)}


def read_files(names: Mapping[str, bool], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with each `NAME_file: path` of a secret replaced by the secret `NAME`.

    A single secret is read again at each use. Several secrets, one per line, are read now. Raises
    SettingsError for a file that cannot be read.
    """
    found = dict(given)
    for name in names:
        path = found.pop(name + SUFFIX, None)
        if path is None:
            continue
        secret = SecretFile(Path(path), name + SUFFIX)
        text = secret.get_secret_value()
        found[name] = tuple(SecretStr(line) for line in text.splitlines() if line) if names[name] else secret
    return found


def _is_secret(kind: Any) -> bool:
    return kind is SecretStr or any(_is_secret(one) for one in get_args(kind))
