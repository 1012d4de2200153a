"""Settings for records that are not JSON: their formats, and the connection to the schema registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from lakehouse.settings.registry_access import RecordFormat, RegistryAccess
from lakehouse.settings.web import of_api


class SchemaRegistrySettings(BaseModel):
    """Record formats and the registry; the property `schema_registry` returns the latter as one value."""

    formats: dict[str, RecordFormat] = Field(
        default_factory=dict,
        description=(
            "Record format of each topic, as {default name: json, avro, json-schema or protobuf}; JSON in "
            "the environment. See docs/formats.md."
        ),
    )
    schema_registry_url: Annotated[str, AfterValidator(of_api)] = Field(
        default="",
        description="URL of the schema registry (Confluent's API), for records that are not JSON.",
    )
    schema_registry_username: str = Field(
        default="", description="User of the schema registry; empty: no authentication."
    )
    schema_registry_password: SecretStr = Field(
        default=SecretStr(""), description="Password of the schema registry's user."
    )
    schema_registry_ca: SecretStr = Field(
        default=SecretStr(""),
        description="CA certificates for the schema registry, in PEM. Default: the system's.",
    )

    @property
    def schema_registry(self) -> RegistryAccess:
        """The connection to the registry."""
        return RegistryAccess(
            self.schema_registry_url,
            self.schema_registry_username,
            self.schema_registry_password,
            self.schema_registry_ca,
        )
