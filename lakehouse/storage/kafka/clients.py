"""Kafka clients configured from a KafkaAccess, and names re-exported from the client libraries."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from confluent_kafka import Consumer as _RdConsumer
from confluent_kafka import KafkaError as ErrorCode
from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as _RdProducer
from confluent_kafka import TopicPartition as Position
from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, OffsetSpec, TopicPartition
from kafka.errors import KafkaError, UnknownTopicOrPartitionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from lakehouse.common import web
from lakehouse.settings.kafka_access import KafkaAccess

__all__ = [
    "Admin",
    "Consumer",
    "ErrorCode",
    "KafkaError",
    "KafkaException",
    "Message",
    "OffsetAndMetadata",
    "OffsetSpec",
    "Position",
    "Producer",
    "TopicPartition",
    "UnknownTopicOrPartitionError",
    "group_member",
]

_SILENT = logging.getLogger("lakehouse.librdkafka")  # librdkafka would log to stderr; its errors are raised
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())
_RENEWED_AT = 0.8  # fraction of a token's lifetime


class Consumer(KafkaConsumer):  # type: ignore[misc]
    """A kafka-python consumer. `options` are kafka-python options and override those from `access`."""

    def __init__(self, access: KafkaAccess, **options: Any) -> None:
        super().__init__(**_arguments(access) | options)


class Admin(KafkaAdminClient):  # type: ignore[misc]
    """A kafka-python admin client, with a timeout for connecting and for each request."""

    def __init__(self, access: KafkaAccess, timeout_s: float) -> None:
        timeout_ms = int(timeout_s * 1000)
        limits = {"bootstrap_timeout_ms": timeout_ms, "request_timeout_ms": timeout_ms}
        super().__init__(**_arguments(access) | limits)


class Producer(_RdProducer):
    """A librdkafka producer. `options` are librdkafka properties."""

    def __init__(self, access: KafkaAccess, options: Mapping[str, Any]) -> None:
        super().__init__({**access.for_librdkafka(), **options}, logger=_SILENT)


def group_member(access: KafkaAccess, group: str) -> object:
    """Return the metadata that a transaction needs to commit offsets for a group without members."""
    consumer = _RdConsumer({**access.for_librdkafka(), "group.id": group, "log_level": 0})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _arguments(access: KafkaAccess) -> dict[str, Any]:
    found = access.for_python()
    if access.is_sasl and access.mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = TokenProvider(access)
    return found


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """A token provider that uses OAuth 2.0's client credentials grant (RFC 6749, 4.4)."""

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """Return a valid token. A token is reused for most of its lifetime."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._token, life_s = self._ask()
                self._until = time.monotonic() + _RENEWED_AT * life_s
            return self._token

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions to send with the token."""
        return self._access.extensions

    def _ask(self) -> tuple[str, float]:
        access = self._access
        form = {"grant_type": "client_credentials"} | ({"scope": access.scope} if access.scope else {})
        headers = web.authorization(access.username, access.password.get_secret_value())
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            with web.WebClient(access.token_url) as client:
                answer = client.ask("POST", headers=headers, body=urlencode(form).encode())
            return _token_in(answer)
        except web.WebError as error:
            raise web.WebError(f"the token endpoint at {web.host_of(access.token_url)}: {error}") from None


def _token_in(answer: web.Answer) -> tuple[str, float]:
    """Return the token and its lifetime in seconds. Raises WebError if the answer contains no token."""
    if not answer.is_success:
        raise web.WebError(f"it answered {answer.status}, {web.said(answer)}")
    try:
        found = json.loads(answer.body)
        token, life_s = found["access_token"], float(found.get("expires_in", 60))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise web.WebError("its answer is not JSON with an access_token") from None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise web.WebError("its access_token is not text")
    return token, life_s
