"""How a schema registry is reached, and the formats of records whose schemas it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import SecretStr

_NOTHING = SecretStr("")
RecordFormat = Literal["json", "avro", "json-schema", "protobuf"]
"""How a record's value is written. All but json begin with five bytes: a zero and the schema's id."""


@dataclass(frozen=True)
class RegistryAccess:
    """A registry with the API of Confluent's, and how this application proves to it who it is.

    `ca` holds the PEM certificates that the registry's must lead to; empty: the system's. As text it is
    its URL; `repr` shows no secret.
    """

    url: str
    username: str = ""
    password: SecretStr = _NOTHING
    ca: SecretStr = _NOTHING

    def __str__(self) -> str:
        return self.url
