"""A schema registry's address and credentials, and the record formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import SecretStr

_NOTHING = SecretStr("")
RecordFormat = Literal["json", "avro", "json-schema", "protobuf"]
"""The format of a record's value.

In every format except json, the value begins with five bytes: a zero byte and the schema's id.
"""


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
