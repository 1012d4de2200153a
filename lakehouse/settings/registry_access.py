"""The address and credentials of a schema registry, and the formats of its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import SecretStr

_NOTHING = SecretStr("")
RecordFormat = Literal["json", "avro", "json-schema", "protobuf"]
"""The format of a record's value. All formats but json begin with five bytes: a zero and the schema's id."""


@dataclass(frozen=True)
class RegistryAccess:
    """A registry with Confluent's API, and this application's credentials for it.

    `ca` holds the trusted CA certificates in PEM; if empty, the system's are used. `str` returns the URL;
    `repr` shows no secret.
    """

    url: str
    username: str = ""
    password: SecretStr = _NOTHING
    ca: SecretStr = _NOTHING

    def __str__(self) -> str:
        return self.url
