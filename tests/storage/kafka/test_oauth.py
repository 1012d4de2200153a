"""OAUTHBEARER on a real broker: a server in this test issues tokens for a client's id and secret."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from pydantic import SecretStr
from pyspark.sql import SparkSession

from lakehouse.common.errors import ServiceError
from lakehouse.dev.services import broker, services
from lakehouse.settings import load_settings
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.offsets import offset_ranges
from lakehouse.storage.kafka.probe import require_broker
from lakehouse.storage.kafka.rights import Right, grant
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.kafka.transactions import Record, Transactions
from lakehouse.storage.spark.kafka_source import read_between

SECRET = "a secret with / and :"  # noqa: S105 - not a real one
_LOGIN = "org.apache.kafka.common.security.oauthbearer"
_VALIDATOR = f"{_LOGIN}.OAuthBearerValidatorCallbackHandler"


class Issuer:
    """Issues tokens to the client `lakehouse`, requested with a form as in RFC 6749."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65_537, 2_048)
        self.asked: list[dict[str, list[str]]] = []

    def jwks(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        n, e = (_encoded(one.to_bytes((one.bit_length() + 7) // 8)) for one in (numbers.n, numbers.e))
        return {"keys": [{"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "n": n, "e": e}]}

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": "lakehouse", "aud": "kafka", "iat": now, "exp": now + 60, "scope": "kafka"}
        parts = ({"alg": "RS256", "kid": "1", "typ": "JWT"}, claims)
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_encoded(signature)}"


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


@contextmanager
def serving(issuer: Issuer) -> Iterator[str]:
    """Serve the issuer at /token and its keys at /jwks; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, issuer.jwks())

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            named = b64decode(self.headers.get("Authorization", "Basic ").partition(" ")[2]).decode()
            issuer.asked.append(form)
            if named != f"lakehouse:{SECRET}":
                self._answer(401, {"error": "invalid_client"})
            else:
                self._answer(200, {"access_token": issuer.token(), "expires_in": 60, "token_type": "Bearer"})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@pytest.mark.soak
def test_every_client_is_let_in_by_a_token(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer()
    with serving(issuer) as address:

        class WithTokens(broker.KafkaServer):
            def _secured(self, port: int, controller_port: int) -> dict[str, str]:
                listener = "listener.name.sasl_ssl.oauthbearer.sasl"
                return {
                    **super()._secured(port, controller_port),
                    "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
                    f"{listener}.jaas.config": f"{_LOGIN}.OAuthBearerLoginModule required;",
                    f"{listener}.server.callback.handler.class": _VALIDATOR,
                    f"{listener}.oauthbearer.jwks.endpoint.url": f"{address}/jwks",
                    f"{listener}.oauthbearer.expected.audience": "kafka",
                }

            def _java_command(self, options: list[str]) -> list[str]:
                allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={address}/jwks"
                return super()._java_command([*options, allowed])

        monkeypatch.setattr(services, "KafkaServer", WithTokens)
        spark._jvm.java.lang.System.setProperty(  # type: ignore[union-attr]
            "org.apache.kafka.sasl.oauthbearer.allowed.urls", f"{address}/token"
        )
        settings = load_settings().changed({"home": tmp_path_factory.mktemp("tokens")})
        with services.local_services(settings, brief=True, secure=True) as endpoints:
            admin = services.administrator(settings)
            assert admin is not None
            create_topics(admin, {"t": 1})
            rights = [Right(one, "topic", "t", "") for one in ("Read", "Write")]
            grant(
                admin,
                "lakehouse",
                [*rights, Right("Write", "transactional id", "lakehouse-", "", is_prefix=True)],
            )
            access = KafkaAccess(
                endpoints.kafka,
                "SASL_SSL",
                "OAUTHBEARER",
                "lakehouse",
                SecretStr(SECRET),
                token_url=f"{address}/token",
                scope="kafka",
                ca=endpoints.access.ca,
            )

            require_broker(access)
            with closing(Transactions(access, "lakehouse-x", timeout_s=30, patience_s=20)) as producer:
                producer.commit([Record("t", b"k", b"v")])
            ((first, end),) = offset_ranges(access, "t").values()
            rows = read_between(spark, access, "t", {0: (first, end)}).select("value").collect()

            assert [bytes(row.value) for row in rows] == [b"v"]
            assert {tuple(form["grant_type"]) for form in issuer.asked} == {("client_credentials",)}
            with pytest.raises(ServiceError, match=r"cannot be used as User:lakehouse: .*check "):
                require_broker(replace(access, password=SecretStr("wrong")), timeout_s=5)
