"""The `schema_registry` section: the connection to the registry, for records that are not JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from lakehouse.settings.fields import Section
from lakehouse.settings.registry_access import RegistryAccess
from lakehouse.settings.secrets import secret_in
from lakehouse.settings.web import of_api


class SchemaRegistrySettings(Section):
    """The schema registry settings. `access` combines these settings into one value."""

    url: Annotated[str, AfterValidator(of_api)] = Field(
        default="",
        description="URL of the schema registry (Confluent's API), for records that are not JSON.",
    )
    username: str = Field(default="", description="Schema registry user. Empty: no authentication.")
    password: SecretStr = Field(default=SecretStr(""), description="The schema registry user's password.")
    ca: Path | None = Field(
        default=None,
        description="PEM file with the registry's CA certificates. Default: the system's certificates.",
    )

    @property
    def access(self) -> RegistryAccess:
        """The connection to the registry. Certificates are read from their file on each use."""
        return RegistryAccess(
            self.url, self.username, self.password, secret_in(self.ca, "schema_registry.ca")
        )
