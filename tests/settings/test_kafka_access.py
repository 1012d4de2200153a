"""How each client is told to reach a broker; contradictory settings are refused."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from pydantic import SecretStr

from lakehouse.common.errors import SettingsError
from lakehouse.dev.services.certificates import Authority
from lakehouse.settings.kafka_access import KafkaAccess

PASSWORD = 'pass"word\\'  # noqa: S105 - not a real password


def by_password() -> KafkaAccess:
    return KafkaAccess("a:1,b:2", "SASL_SSL", "SCRAM-SHA-512", "lakehouse", SecretStr(PASSWORD))


def by_token() -> KafkaAccess:
    return KafkaAccess(
        "a:1",
        "SASL_SSL",
        "OAUTHBEARER",
        "me",
        SecretStr("s"),
        token_url="https://login.example/token",  # noqa: S106 - an address
        scope="kafka",
        properties={"sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=p"},
    )


def test_an_open_broker_needs_its_address_alone() -> None:
    access = KafkaAccess("a:1,b:2")

    assert access.for_java() == {"bootstrap.servers": "a:1,b:2"}
    assert access.for_spark() == {"kafka.bootstrap.servers": "a:1,b:2"}
    assert access.for_python() == {"bootstrap_servers": ["a:1", "b:2"]}
    assert access.for_librdkafka() == {"bootstrap.servers": "a:1,b:2"}
    assert str(access) == "a:1,b:2"


def test_a_password_is_written_as_each_client_reads_it() -> None:
    access = by_password()

    assert access.for_java() == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        r'username="lakehouse" password="pass\"word\\";',
    }
    found = access.for_python()
    assert found.pop("ssl_context").verify_mode == ssl.CERT_REQUIRED
    assert found == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "lakehouse",
        "sasl_plain_password": PASSWORD,
    }
    assert access.for_librdkafka() == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "lakehouse",
        "sasl.password": PASSWORD,
    }


def test_a_token_is_asked_for_with_the_clients_id_and_secret() -> None:
    access = by_token()

    assert access.for_java() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="me" clientSecret="s" scope="kafka" extension_logicalCluster="lkc-1" '
        'extension_identityPoolId="p";',
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
        "sasl.login.connect.timeout.ms": "10000",
        "sasl.login.read.timeout.ms": "10000",
    }
    assert access.for_librdkafka() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "s",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=p",
    }
    assert "sasl_plain_password" not in access.for_python()


def test_certificates_go_to_the_clients_as_text(tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = (text.strip() for text in authority.issue("lakehouse"))
    ca = authority.pem.strip()
    access = KafkaAccess(
        "a:1", "SSL", ca=SecretStr(ca), certificate=SecretStr(certificate), key=SecretStr(key)
    )

    assert access.for_java() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": ca,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": key,
    }
    assert access.for_librdkafka() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.ca.pem": ca,
        "ssl.certificate.pem": certificate,
        "ssl.key.pem": key,
    }
    assert len(access.for_python()["ssl_context"].get_ca_certs()) == 1
    assert list(tmp_path.iterdir()) == []


def test_further_properties_have_each_clients_name() -> None:
    given = {
        "client.id": "me",
        "connections.max.idle.ms": "180000",
        "ssl.endpoint.identification.algorithm": "",
    }
    access = KafkaAccess("a:1", "SSL", properties=given)

    assert access.for_java() == {"bootstrap.servers": "a:1", "security.protocol": "SSL", **given}
    found = access.for_python()
    assert not found.pop("ssl_context").check_hostname
    assert found == {
        "bootstrap_servers": ["a:1"],
        "security_protocol": "SSL",
        "client_id": "me",
        "connections_max_idle_ms": 180_000,
    }
    assert access.for_librdkafka() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "client.id": "me",
        "connections.max.idle.ms": "180000",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_no_secret_is_shown() -> None:
    shown = f"{by_password()!r} {by_password()} {by_token()!r}"

    assert PASSWORD not in shown
    assert "password=SecretStr('**********')" in shown


@pytest.mark.parametrize(
    ("access", "said"),
    [
        (
            KafkaAccess("a:1", username="u"),
            "kafka.security_protocol is PLAINTEXT, which does not use kafka.sasl_username; ",
        ),
        (
            KafkaAccess("a:1", "SSL", password=SecretStr("p")),
            "is SSL, which does not use kafka.sasl_password; ",
        ),
        (KafkaAccess("a:1", "SASL_SSL", "PLAIN", "u"), "is SASL_SSL, which needs kafka.sasl_password"),
        (
            KafkaAccess("a:1", "SASL_SSL"),
            "needs kafka.sasl_mechanism, kafka.sasl_username, kafka.sasl_password",
        ),
        (
            KafkaAccess("a:1", "SASL_SSL", "OAUTHBEARER", "u", SecretStr("p")),
            "needs kafka.oauth_token_url",
        ),
        (
            KafkaAccess("a:1", "SASL_SSL", "PLAIN", "u", SecretStr("p"), scope="s"),
            "are only for OAUTHBEARER, but kafka.sasl_mechanism is PLAIN",
        ),
        (KafkaAccess("a:1", ca=SecretStr("x")), "is PLAINTEXT, which does not use kafka.ssl_ca; "),
        (KafkaAccess("a:1", "SSL", ca=SecretStr("x")), "the certificates for Kafka cannot be used"),
        (
            KafkaAccess("a:1", "SSL", certificate=SecretStr("x")),
            "kafka.ssl_certificate and kafka.ssl_key must be set together",
        ),
        (
            KafkaAccess(
                "a:1",
                "SSL",
                certificate=SecretStr("x"),
                key=SecretStr("-----BEGIN EC PRIVATE KEY-----"),
            ),
            "is not a PKCS#8 key in PEM",
        ),
        (
            KafkaAccess("a:1", properties={"acks": "0"}),
            "kafka.client_properties contains acks; allowed: ",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(access: KafkaAccess, said: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        access.check()

    assert said in str(refusal.value)
