"""The connection to a Kafka cluster, and its properties for each of the three Kafka clients.

The clients are the Java client (which Spark uses), kafka-python and librdkafka. Passwords, certificates and
keys can come from files. Each new client reads these files again, so a change takes effect with the next
client.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import SecretStr

from lakehouse.common.errors import SettingsError

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_NOTHING = SecretStr("")
_HOST_NAME = "ssl.endpoint.identification.algorithm"
_EXTENSIONS = "sasl.oauthbearer.extensions"
_JAVA_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_JAVA_TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_TEN_SECONDS_MS = "10000"
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


@dataclass(frozen=True)
class _Names:
    """A client property's name in the Java client, kafka-python and librdkafka. None: not supported."""

    java: str
    python: str | None
    librdkafka: str | None


_ALLOWED = {
    one.java: one
    for one in (
        _Names("client.id", "client_id", "client.id"),
        _Names("client.rack", None, "client.rack"),
        _Names("client.dns.lookup", None, "client.dns.lookup"),
        _Names("connections.max.idle.ms", "connections_max_idle_ms", "connections.max.idle.ms"),
        _Names("metadata.max.age.ms", "metadata_max_age_ms", "metadata.max.age.ms"),
        _Names("reconnect.backoff.ms", "reconnect_backoff_ms", "reconnect.backoff.ms"),
        _Names("reconnect.backoff.max.ms", "reconnect_backoff_max_ms", "reconnect.backoff.max.ms"),
        _Names("retry.backoff.ms", "retry_backoff_ms", "retry.backoff.ms"),
        _Names("request.timeout.ms", "request_timeout_ms", "socket.timeout.ms"),
        _Names(_HOST_NAME, None, None),
        _Names(_EXTENSIONS, None, None),
    )
}
CLIENT_PROPERTIES = tuple(sorted(_ALLOWED))
_SETTINGS = {
    "protocol": "kafka.security_protocol",
    "mechanism": "kafka.sasl_mechanism",
    "username": "kafka.sasl_username",
    "password": "kafka.sasl_password",
    "token_url": "kafka.oauth_token_url",
    "scope": "kafka.oauth_scope",
    "ca": "kafka.ssl_ca",
    "certificate": "kafka.ssl_certificate",
    "key": "kafka.ssl_key",
}


@dataclass(frozen=True)
class KafkaAccess:
    """The brokers' addresses, and this application's credentials.

    `servers` is one or more host:port, separated by commas. `ca` contains the trusted CA certificates in PEM
    (empty: the system's certificates). `certificate` and `key` are this application's own; the key is in
    PKCS#8. For OAUTHBEARER, `username` and `password` are a client's id and secret, and `token_url` is the
    token endpoint. `properties` contains properties from CLIENT_PROPERTIES, keyed by their Java names.

    `str` returns the servers; `repr` shows no secret.
    """

    servers: str
    protocol: Protocol = "PLAINTEXT"
    mechanism: Mechanism = ""
    username: str = ""
    password: SecretStr = _NOTHING
    token_url: str = ""
    scope: str = ""
    ca: SecretStr = _NOTHING
    certificate: SecretStr = _NOTHING
    key: SecretStr = _NOTHING
    key_password: SecretStr = _NOTHING
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __str__(self) -> str:
        return self.servers

    @property
    def is_sasl(self) -> bool:
        """True if the brokers require a user name and a secret."""
        return self.protocol.startswith("SASL_")

    @property
    def is_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def principal(self) -> str:
        """The user as which the broker sees this application, for messages."""
        if self.is_sasl:
            return f"User:{self.username}"
        return (
            "the user of the client certificate" if self.certificate.get_secret_value() else "User:ANONYMOUS"
        )

    def check(self) -> None:
        """Raise SettingsError for contradictory or unusable values. The message quotes no secret."""
        given = {
            name
            for name in ("mechanism", "username", "password", "token_url", "scope")
            if _text(getattr(self, name))
        }
        is_oauth = self.mechanism == "OAUTHBEARER"
        if given and not self.is_sasl:
            names = ", ".join(_SETTINGS[name] for name in sorted(given))
            raise SettingsError(
                f"{_SETTINGS['protocol']} is {self.protocol}, which does not use {names}; set it to "
                "SASL_SSL, or to SASL_PLAINTEXT for no encryption"
            )
        if self.is_sasl:
            needed = ["mechanism", "username", "password", *(["token_url"] if is_oauth else [])]
            missing = [_SETTINGS[name] for name in needed if name not in given]
            if missing:
                raise SettingsError(
                    f"{_SETTINGS['protocol']} is {self.protocol}, which needs {', '.join(missing)}"
                )
            if not is_oauth and given & {"token_url", "scope"}:
                raise SettingsError(
                    f"{_SETTINGS['token_url']} and {_SETTINGS['scope']} are only for OAUTHBEARER, but "
                    f"{_SETTINGS['mechanism']} is {self.mechanism}"
                )
        self._check_certificates()
        unknown = sorted(set(self.properties) - set(_ALLOWED))
        if unknown:
            raise SettingsError(
                f"kafka.client_properties contains {', '.join(unknown)}; allowed: "
                f"{', '.join(CLIENT_PROPERTIES)}"
            )

    def _check_certificates(self) -> None:
        pem = {name: _text(getattr(self, name)) for name in ("ca", "certificate", "key")}
        given = [_SETTINGS[name] for name, text in pem.items() if text]
        if given and not self.is_tls:
            raise SettingsError(
                f"{_SETTINGS['protocol']} is {self.protocol}, which does not use {', '.join(given)}; set it "
                "to SSL or SASL_SSL"
            )
        if bool(pem["certificate"]) != bool(pem["key"]):
            raise SettingsError(f"{_SETTINGS['certificate']} and {_SETTINGS['key']} must be set together")
        if pem["key"] and not any(one in pem["key"] for one in _PKCS8):
            raise SettingsError(
                f"{_SETTINGS['key']} is not a PKCS#8 key in PEM, which Java needs; "
                "create one with `openssl pkcs8 -topk8 -nodes -in KEY`"
            )
        if self.is_tls:
            try:
                self._context()
            except (ssl.SSLError, ValueError) as error:
                raise SettingsError(
                    f"the certificates for Kafka cannot be used ({', '.join(given)}): {error}"
                ) from None

    def for_java(self) -> dict[str, str]:
        """Return the properties for a Java client."""
        found = {
            "bootstrap.servers": self.servers,
            **{name: value for name, value in self.properties.items() if name != _EXTENSIONS},
        }
        if self.protocol == "PLAINTEXT":
            return found
        found["security.protocol"] = self.protocol
        if self.is_sasl:
            found |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": self._jaas()}
        if self.mechanism == "OAUTHBEARER":
            found |= {
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
                "sasl.login.callback.handler.class": _JAVA_TOKENS,
                "sasl.login.connect.timeout.ms": _TEN_SECONDS_MS,  # without timeouts, it waits forever
                "sasl.login.read.timeout.ms": _TEN_SECONDS_MS,
            }
        ca, certificate, key = self._pem()
        if ca:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": ca}
        if certificate:
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": certificate,
                "ssl.keystore.key": key,
            }
            if self.key_password.get_secret_value():
                found["ssl.key.password"] = self.key_password.get_secret_value()
        return found

    def for_spark(self) -> dict[str, str]:
        """Return the options for Spark's Kafka source."""
        return {f"kafka.{name}": value for name, value in self.for_java().items()}

    def for_python(self) -> dict[str, Any]:
        """Return the arguments for a kafka-python client, except the OAuth token provider."""
        found: dict[str, Any] = {"bootstrap_servers": self.servers.split(",")}
        for name, value in self.properties.items():
            known = _ALLOWED[name].python
            if known is not None:
                found[known] = int(value) if value.isdecimal() else value
        if self.protocol != "PLAINTEXT":
            found["security_protocol"] = self.protocol
        if self.is_tls:
            found["ssl_context"] = self._context()
        if self.is_sasl:
            found["sasl_mechanism"] = self.mechanism
        if self.is_sasl and self.mechanism != "OAUTHBEARER":
            found |= {
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password.get_secret_value(),
            }
        return found

    def for_librdkafka(self) -> dict[str, Any]:
        """Return the properties for a librdkafka client."""
        found: dict[str, Any] = {"bootstrap.servers": self.servers}
        for name, value in self.properties.items():
            known = _ALLOWED[name].librdkafka
            if known is not None:
                found[known] = value
        if self.protocol == "PLAINTEXT":
            return found
        found["security.protocol"] = self.protocol
        if self.is_sasl:
            found |= self._sasl_of_librdkafka()
        if _HOST_NAME in self.properties:
            found[_HOST_NAME] = self.properties[_HOST_NAME] or "none"
        ca, certificate, key = self._pem()
        found |= {"ssl.ca.pem": ca} if ca else {}
        if certificate:
            found |= {"ssl.certificate.pem": certificate, "ssl.key.pem": key}
            if self.key_password.get_secret_value():
                found["ssl.key.password"] = self.key_password.get_secret_value()
        return found

    def _sasl_of_librdkafka(self) -> dict[str, Any]:
        secret = self.password.get_secret_value()
        found: dict[str, Any] = {"sasl.mechanism": self.mechanism}
        if self.mechanism != "OAUTHBEARER":
            return found | {"sasl.username": self.username, "sasl.password": secret}
        found |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": self.username,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.token.endpoint.url": self.token_url,
        }
        found |= {"sasl.oauthbearer.scope": self.scope} if self.scope else {}
        return found | ({_EXTENSIONS: self.properties[_EXTENSIONS]} if self.extensions else {})

    @property
    def extensions(self) -> dict[str, str]:
        """The SASL extensions to send with an OAuth token, such as logicalCluster for Confluent Cloud."""
        pairs = (one.partition("=") for one in self.properties.get(_EXTENSIONS, "").split(",") if one)
        return {name.strip(): value.strip() for name, _, value in pairs}

    def _jaas(self) -> str:
        """Return the Java client's login module and options in JAAS syntax."""
        if self.mechanism == "OAUTHBEARER":
            options = {"clientId": self.username, "clientSecret": self.password.get_secret_value()}
            options |= {"scope": self.scope} if self.scope else {}
            options |= {f"extension_{name}": value for name, value in self.extensions.items()}
        else:
            options = {"username": self.username, "password": self.password.get_secret_value()}
        said = " ".join(f"{name}={_quoted(value)}" for name, value in options.items())
        return f"{_JAVA_MODULES[self.mechanism]} required {said};"

    def _pem(self) -> tuple[str, str, str]:
        if not self.is_tls:
            return "", "", ""
        return _text(self.ca), _text(self.certificate), _text(self.key)

    def _context(self) -> ssl.SSLContext:
        ca, certificate, key = self._pem()
        context = ssl.create_default_context(cadata=ca or None)
        context.check_hostname = self.properties.get(_HOST_NAME, "https") != ""
        if certificate:
            with tempfile.TemporaryDirectory() as directory:  # the ssl module accepts only files
                both = Path(directory, "both.pem")
                both.touch(0o600)
                both.write_text(f"{key}\n{certificate}\n", encoding="ascii")
                context.load_cert_chain(both, password=self.key_password.get_secret_value() or None)
        return context


def _text(value: str | SecretStr) -> str:
    return value.get_secret_value().strip() if isinstance(value, SecretStr) else value


def _quoted(text: str) -> str:
    """Quote a value for java.io.StreamTokenizer, which parses JAAS options."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
