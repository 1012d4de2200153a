"""The settings by which Kafka is reached."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from lakehouse.settings.kafka_access import CLIENT_PROPERTIES, KafkaAccess, Mechanism, Protocol
from lakehouse.settings.web import of_token_endpoint


class KafkaSettings(BaseModel):
    """One group: `kafka` is its value."""

    kafka_bootstrap_servers: str = Field(
        default="",
        description="host:port of the brokers. Default: the running local broker, else 127.0.0.1:9092.",
    )
    kafka_security_protocol: Protocol = Field(
        default="PLAINTEXT",
        description="Whether connections to Kafka are encrypted (SSL) and authenticated (SASL).",
    )
    kafka_sasl_mechanism: Mechanism = Field(
        default="", description="SASL mechanism by which the user is authenticated."
    )
    kafka_sasl_username: str = Field(
        default="", description="The Kafka user; with OAUTHBEARER, the client's id."
    )
    kafka_sasl_password: SecretStr = Field(
        default=SecretStr(""), description="The Kafka user's password; with OAUTHBEARER, the client's secret."
    )
    kafka_oauth_token_url: Annotated[str, AfterValidator(of_token_endpoint)] = Field(
        default="", description="Token endpoint for OAUTHBEARER's client credentials."
    )
    kafka_oauth_scope: str = Field(default="", description="Scope of OAUTHBEARER's tokens.")
    kafka_ssl_ca: SecretStr = Field(
        default=SecretStr(""),
        description="PEM certificates of the brokers' authorities. Default: the system's.",
    )
    kafka_ssl_certificate: SecretStr = Field(
        default=SecretStr(""), description="This application's certificate for Kafka, in PEM, with its chain."
    )
    kafka_ssl_key: SecretStr = Field(
        default=SecretStr(""), description="The private key of kafka_ssl_certificate, in PEM and PKCS#8."
    )
    kafka_ssl_key_password: SecretStr = Field(default=SecretStr(""), description="Password of kafka_ssl_key.")
    kafka_client_properties: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict,
        description=f"Further properties of Kafka's clients, of these: {', '.join(CLIENT_PROPERTIES)}.",
    )

    @property
    def kafka(self) -> KafkaAccess:
        """How Kafka is reached."""
        return KafkaAccess(
            self.kafka_bootstrap_servers,
            self.kafka_security_protocol,
            self.kafka_sasl_mechanism,
            self.kafka_sasl_username,
            self.kafka_sasl_password,
            self.kafka_oauth_token_url,
            self.kafka_oauth_scope,
            self.kafka_ssl_ca,
            self.kafka_ssl_certificate,
            self.kafka_ssl_key,
            self.kafka_ssl_key_password,
            self.kafka_client_properties,
        )
