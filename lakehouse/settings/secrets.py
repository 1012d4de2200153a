"""Secrets in files, such as Kubernetes mounts: `LAKEHOUSE_REDIS_URL_FILE` names the file for redis.url."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from lakehouse.common.errors import SettingsError


class SecretFile(SecretStr):
    """A secret that is read from its file on each use, so that it can be rotated."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        super().__init__("")

    def get_secret_value(self) -> str:
        """Return the file's text without trailing line breaks. Raises SettingsError if it cannot be read."""
        try:
            return self._path.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self._name}: {self._path} cannot be read: {error}") from None

    def __len__(self) -> int:
        """Return the length of the text in the file, so that an empty file counts as no secret."""
        return len(self.get_secret_value())


def secret_in(path: Path | None, name: str) -> SecretStr:
    """Return a secret that reads `path` on each use, or an empty one for None. Errors mention `name`."""
    return SecretStr("") if path is None else SecretFile(path, name)
