"""The project's only HTTP client, against servers that answer as no server should."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from pydantic import SecretStr

from lakehouse.common import web
from lakehouse.common.errors import LakehouseError, RegistryError, SettingsError
from lakehouse.operations.alerts.posting import PLAIN, AwayError, Receiver
from lakehouse.settings import load_settings
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.settings.registry_access import RegistryAccess
from lakehouse.storage.kafka.clients import Producer, TokenProvider
from lakehouse.storage.kafka.schema_registry import RegistryClient
from tests.support import hostile as servers
from tests.support.hostile import hostile

SECRET = "s3cret"  # noqa: S105 - not a real secret
BASIC = base64.b64encode(f"me:{SECRET}".encode()).decode()


def of_tokens(url: str) -> KafkaAccess:
    secret = SecretStr(SECRET)
    return KafkaAccess("127.0.0.1:1", "SASL_PLAINTEXT", "OAUTHBEARER", "me", secret, token_url=url)


def ask_for_a_token(url: str) -> None:
    TokenProvider(of_tokens(url)).token()


def ask_for_a_schema(url: str) -> None:
    with RegistryClient(RegistryAccess(url, "me", SecretStr(SECRET))) as client:
        client.schema(1)


def notify(url: str) -> None:
    Receiver(url.replace("://", f"://me:{SECRET}@"), PLAIN).post(b"{}", "e-1")


OAUTH = {
    "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "KAFKA_SASL_MECHANISM": "OAUTHBEARER",
    "KAFKA_SASL_USERNAME": "me",
    "KAFKA_SASL_PASSWORD": "p",
    "KAFKA_OAUTH_TOKEN_URL": "https://login.example/token",
}
USERS = [(ask_for_a_token, web.WebError), (ask_for_a_schema, RegistryError), (notify, AwayError)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "DEADLINE_S", 0.5)
    monkeypatch.setattr(web, "MOST_BYTES", 1 << 20)


@pytest.mark.parametrize(("use", "refusal"), USERS)
@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (servers.with_endless_headers, "got more than 65536 bytes when reading header line"),
        (servers.with_many_headers, "got more than 100 headers"),
        (servers.with_endless_promises, "its answer has more than 1,048,576 bytes"),
        (servers.with_a_slow_head, "it did not send a complete response within 0.5 s"),
    ],
)
def test_no_head_of_an_answer_holds_anybody_up(
    use: Callable[[str], None], refusal: type[LakehouseError], behave: servers.Behave, why: str
) -> None:
    with hostile(behave) as server, pytest.raises(refusal) as refused:
        use(server.url)
    assert why in str(refused.value)
    assert BASIC.encode() in server.requests[0]
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(("use", "refusal"), USERS[:2])
@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (servers.with_an_endless_body, "its answer has more than 1,048,576 bytes"),
        (servers.with_a_body_of_a_petabyte, "its answer has more than 1,048,576 bytes"),
        (servers.with_a_slow_body, "it did not send a complete response within 0.5 s"),
        (servers.cut_off, "its answer is cut off"),
    ],
)
def test_no_body_holds_up_those_who_read_it(
    use: Callable[[str], None], refusal: type[LakehouseError], behave: servers.Behave, why: str
) -> None:
    with hostile(behave) as server, pytest.raises(refusal) as refused:
        use(server.url)
    assert why in str(refused.value)


def test_a_webhook_s_body_is_not_read() -> None:
    with hostile(servers.with_a_slow_body) as server:
        notify(server.url)
    assert len(server.requests) == 1


@pytest.mark.parametrize(("use", "refusal"), USERS)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_and_the_other_host_is_named(
    use: Callable[[str], None], refusal: type[LakehouseError], status: int
) -> None:
    with hostile(servers.answering(b"{}")) as other:
        there = other.url.replace("127.0.0.1", "localhost")
        with hostile(servers.redirecting(there, status)) as server, pytest.raises(refusal) as refused:
            use(server.url)
    assert f"it answered {status}, a redirect to localhost, which is not followed" in str(refused.value)
    assert (len(server.requests), other.requests) == (1, [])


def test_librdkafka_follows_no_redirect_to_a_token() -> None:
    failed: list[str] = []
    with hostile(servers.answering(b"{}")) as other, hostile(servers.redirecting(other.url)) as server:
        producer = Producer(of_tokens(server.url), {"error_cb": lambda error: failed.append(error.str())})
        for _ in range(300):
            producer.poll(0.1)
            if failed:
                break
    assert "Failed to acquire SASL OAUTHBEARER token" in failed[0]
    assert BASIC.encode() in server.requests[0]
    assert other.requests == []


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        (b'{"error": "invalid_client"}', 401, 'it answered 401, {"error": "invalid_client"}'),
        (b"<html>\x1b[31m", 200, "its answer is not JSON with an access_token"),
        (b'{"access_token": null}', 200, "its access_token is not text"),
        (b'{"access_token": "a\\nb"}', 200, "its access_token is not text"),
        (b"[1]", 200, "its answer is not JSON with an access_token"),
        (b"[" * 100_000, 200, "its answer is not JSON with an access_token"),
    ],
)
def test_an_answer_without_a_token_is_named(answer: bytes, status: int, why: str) -> None:
    with hostile(servers.answering(answer, status)) as server, pytest.raises(web.WebError) as refused:
        ask_for_a_token(server.url)
    assert str(refused.value) == f"the token endpoint at 127.0.0.1: {why}"


def test_a_token_is_asked_for_once_until_it_ages() -> None:
    body = json.dumps({"access_token": "a.b.c", "expires_in": 300}).encode()
    with hostile(servers.answering(body)) as server:
        tokens = TokenProvider(of_tokens(server.url))
        assert [tokens.token(), tokens.token()] == ["a.b.c", "a.b.c"]
    (request,) = server.requests
    assert request.startswith(b"POST /here HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\ngrant_type=client_credentials")
    assert b"Content-Type: application/x-www-form-urlencoded\r\n" in request


def test_what_is_not_encrypted_takes_no_proxy_from_loopback_to_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with (
        hostile(servers.answering(b"{}")) as proxy,
        hostile(servers.answering(b"{}")) as server,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        with web.WebClient(server.url) as client:
            assert client.ask("GET").body == b"{}"
        with web.WebClient("http://registry.example:8081/api/") as client:
            assert client.ask("GET", "/schemas/ids/1").body == b"{}"
    assert len(server.requests) == 1
    assert proxy.requests[0].startswith(b"GET http://registry.example:8081/api/schemas/ids/1 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        (
            {"SCHEMA_REGISTRY_URL": "http://registry.example:8081"},
            "schema_registry.url is http://registry.example…, so passwords and data would",
        ),
        (
            {"KAFKA_OAUTH_TOKEN_URL": "http://login.example/t"},
            "or add login.example to http_hosts (LAKEHOUSE_HTTP_HOSTS)",
        ),
        (
            {"ALERTS_WEBHOOKS": '["http://u:s3cret@hooks.example/s3cret"]'},
            "alerts.webhooks is http://hooks.exa",
        ),
        ({"S3_ENDPOINT": "http://10.0.0.7:9000"}, "s3.endpoint is http://10.0.0.7…, so"),
        (
            {"S3_ENDPOINT": "http://10.0.0.7:9000", "HTTP_HOSTS": "10.0.0.70,store"},
            "s3.endpoint is http://10.0.0.7…, so",
        ),
        ({"SCHEMA_REGISTRY_URL": "https://u:s3cret@registry.example"}, "it contains a user name or password"),
        (
            {"KAFKA_OAUTH_TOKEN_URL": "https://u:s3cret@login.example/t"},
            "it contains a user name or password",
        ),
        ({"S3_ENDPOINT": "https://u:s3cret@store.example"}, "it contains a user name or password"),
        (
            {"KAFKA_OAUTH_TOKEN_URL": "https://login.example/t -XX:Evil"},
            "characters that must be percent-en",
        ),
        ({"KAFKA_OAUTH_TOKEN_URL": "ftp://login.example/t"}, "it must start with http:// or https://"),
        ({"SCHEMA_REGISTRY_URL": "https://registry.example/?a=1"}, "it has a query or a fragment"),
    ],
)
def test_a_url_that_would_betray_a_secret_is_refused_without_being_quoted(
    variables: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (OAUTH | variables).items():
        monkeypatch.setenv(f"LAKEHOUSE_{name}", value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert why in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_host_may_be_reached_without_encryption_if_a_setting_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls = {
        "SCHEMA_REGISTRY_URL": "http://Registry.example:8081/apis/ccompat/v7",
        "KAFKA_OAUTH_TOKEN_URL": "http://[::1]:8080/token?tenant=a",
        "S3_ENDPOINT": "http://store:9000/",
    }
    for name, value in (OAUTH | urls | {"HTTP_HOSTS": "registry.example, store"}).items():
        monkeypatch.setenv(f"LAKEHOUSE_{name}", value)
    settings = load_settings()
    assert settings.schema_registry.url == urls["SCHEMA_REGISTRY_URL"]
    assert settings.kafka.oauth_token_url == urls["KAFKA_OAUTH_TOKEN_URL"]
    assert settings.s3.endpoint == urls["S3_ENDPOINT"]
