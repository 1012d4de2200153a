"""Settings for the connection to Kafka."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from lakehouse.settings.kafka_access import CLIENT_PROPERTIES, KafkaAccess, Mechanism, Protocol
from lakehouse.settings.web import of_token_endpoint


class KafkaSettings(BaseModel):
    """The Kafka settings; the property `kafka` returns them as one value."""

    kafka_bootstrap_servers: str = Field(
        default="",
        description="host:port of the brokers. Default: the running local broker, else 127.0.0.1:9092.",
    )
    kafka_security_protocol: Protocol = Field(
        default="PLAINTEXT",
        description="Whether connections to Kafka are encrypted (SSL) and authenticated (SASL).",
    )
    kafka_sasl_mechanism: Mechanism = Field(
        default="", description="SASL mechanism that authenticates the user."
    )
    kafka_sasl_username: str = Field(
        default="", description="The Kafka user; with OAUTHBEARER, the client ID."
    )
    kafka_sasl_password: SecretStr = Field(
        default=SecretStr(""), description="The Kafka user's password; with OAUTHBEARER, the client secret."
    )
    kafka_oauth_token_url: Annotated[str, AfterValidator(of_token_endpoint)] = Field(
        default="", description="Token endpoint for OAUTHBEARER with client credentials."
    )
    kafka_oauth_scope: str = Field(default="", description="Scope of the OAUTHBEARER tokens.")
    kafka_ssl_ca: SecretStr = Field(
        default=SecretStr(""),
        description="CA certificates for the brokers, in PEM. Default: the system's.",
    )
    kafka_ssl_certificate: SecretStr = Field(
        default=SecretStr(""), description="The client certificate for Kafka with its chain, in PEM."
    )
    kafka_ssl_key: SecretStr = Field(
        default=SecretStr(""), description="The private key of kafka_ssl_certificate, in PEM and PKCS#8."
    )
    kafka_ssl_key_password: SecretStr = Field(default=SecretStr(""), description="Password of kafka_ssl_key.")
    kafka_client_properties: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict,
        description=f"Additional properties of the Kafka clients; allowed: {', '.join(CLIENT_PROPERTIES)}.",
    )

    @property
    def kafka(self) -> KafkaAccess:
        """The connection to Kafka."""
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
