"""A schema registry's address and credentials."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

_NOTHING = SecretStr("")


@dataclass(frozen=True)
class RegistryAccess:
    """A registry with Confluent's API, and this application's credentials for it.

    `ca` contains the trusted CA certificates in PEM; if it is empty, the system's certificates are used.
    `str` returns the URL, and `repr` shows no secret.
    """

    url: str
    username: str = ""
    password: SecretStr = _NOTHING
    ca: SecretStr = _NOTHING

    def __str__(self) -> str:
        return self.url
