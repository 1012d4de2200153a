"""The settings of records that are not JSON: which, and where the registry has their schemas."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from lakehouse.settings.registry_access import RecordFormat, RegistryAccess
from lakehouse.settings.web import of_api


class SchemaRegistrySettings(BaseModel):
    """One group: `schema_registry` is its value, but for the formats."""

    formats: dict[str, RecordFormat] = Field(
        default_factory=dict,
        description=(
            "How a topic's records are written, as {default name: json, avro, json-schema or protobuf}; JSON "
            "in the environment. See docs/formats.md."
        ),
    )
    schema_registry_url: Annotated[str, AfterValidator(of_api)] = Field(
        default="",
        description="URL of the schema registry's API (Confluent's), for records that are not JSON.",
    )
    schema_registry_username: str = Field(default="", description="The user there; empty: none is asked for.")
    schema_registry_password: SecretStr = Field(default=SecretStr(""), description="Its password.")
    schema_registry_ca: SecretStr = Field(
        default=SecretStr(""),
        description="PEM certificates that the registry's must lead to. Default: the system's.",
    )

    @property
    def schema_registry(self) -> RegistryAccess:
        """How the registry is reached."""
        return RegistryAccess(
            self.schema_registry_url,
            self.schema_registry_username,
            self.schema_registry_password,
            self.schema_registry_ca,
        )
