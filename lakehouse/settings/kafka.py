"""The `kafka` section: the connection, and the topics that lakehouse itself creates or writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from lakehouse.settings.fields import Section
from lakehouse.settings.kafka_access import CLIENT_PROPERTIES, KafkaAccess, Mechanism, Protocol
from lakehouse.settings.secrets import secret_in
from lakehouse.settings.web import of_token_endpoint


class KafkaSettings(Section):
    """The Kafka settings. `access` combines the connection settings into one value."""

    bootstrap_servers: str = Field(
        default="",
        description="The brokers' host:port. Default: the local broker if running, else 127.0.0.1:9092.",
    )
    security_protocol: Protocol = Field(
        default="PLAINTEXT",
        description="How connections to Kafka are encrypted (SSL) and authenticated (SASL).",
    )
    sasl_mechanism: Mechanism = Field(default="", description="SASL mechanism for authentication.")
    sasl_username: str = Field(default="", description="The Kafka user; with OAUTHBEARER, the client ID.")
    sasl_password: SecretStr = Field(
        default=SecretStr(""), description="The Kafka user's password; with OAUTHBEARER, the client secret."
    )
    oauth_token_url: Annotated[str, AfterValidator(of_token_endpoint)] = Field(
        default="", description="Token endpoint for OAUTHBEARER (client credentials grant)."
    )
    oauth_scope: str = Field(default="", description="Scope requested for OAUTHBEARER tokens.")
    ssl_ca: Path | None = Field(
        default=None,
        description="PEM file with the brokers' CA certificates. Default: the system's certificates.",
    )
    ssl_certificate: Path | None = Field(
        default=None, description="PEM file with the client certificate for Kafka and its certificate chain."
    )
    ssl_key: Path | None = Field(
        default=None, description="PEM file with the private key for ssl_certificate, in PKCS#8."
    )
    ssl_key_password: SecretStr = Field(default=SecretStr(""), description="Password for ssl_key.")
    client_properties: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict,
        description=f"Additional properties for the Kafka clients; allowed: {', '.join(CLIENT_PROPERTIES)}.",
    )
    topic_partitions: int = Field(
        default=4, ge=1, description="Number of partitions in topics that lakehouse creates."
    )
    consumer_group: str = Field(
        default="lakehouse-bronze-{table}",
        description=(
            "Kafka consumer group for which bronze commits offsets; {table} stands for the table's name. "
            "Empty: none."
        ),
    )
    dead_letter_topic: str = Field(
        default="",
        pattern=r"^[a-zA-Z0-9._-]{0,200}$",
        description="Topic to which dead letters are also sent. Default: none.",
    )

    @property
    def access(self) -> KafkaAccess:
        """The connection to Kafka. Certificates are read from their files on each use."""
        return KafkaAccess(
            self.bootstrap_servers,
            self.security_protocol,
            self.sasl_mechanism,
            self.sasl_username,
            self.sasl_password,
            self.oauth_token_url,
            self.oauth_scope,
            secret_in(self.ssl_ca, "kafka.ssl_ca"),
            secret_in(self.ssl_certificate, "kafka.ssl_certificate"),
            secret_in(self.ssl_key, "kafka.ssl_key"),
            self.ssl_key_password,
            self.client_properties,
        )
