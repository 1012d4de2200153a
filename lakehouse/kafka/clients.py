"""Kafka's clients, each made from a KafkaAccess alone; and the names of theirs that others use."""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from confluent_kafka import Consumer as _RdConsumer
from confluent_kafka import KafkaError as ErrorCode
from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as _RdProducer
from confluent_kafka import TopicPartition as Position
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError, UnknownTopicOrPartitionError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.partitioner import murmur2
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import OffsetAndMetadata

from lakehouse.kafka.access import KafkaAccess

__all__ = [
    "Admin",
    "Consumer",
    "DefaultRecordBatchBuilder",
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
    "murmur2",
]

_SILENT = logging.getLogger("lakehouse.librdkafka")  # else stderr has it; what is wrong is raised
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())
_TOKEN_S = 10.0  # to ask for a token
_RENEWED_AT = 0.8  # of its life


class Consumer(KafkaConsumer):  # type: ignore[misc]
    """A consumer of kafka-python; `options` are its own, and go over the access's properties."""

    def __init__(self, access: KafkaAccess, **options: Any) -> None:
        super().__init__(**_arguments(access) | options)


class Admin(KafkaAdminClient):  # type: ignore[misc]
    """An admin client of kafka-python, whose broker has so long to answer."""

    def __init__(self, access: KafkaAccess, timeout_s: float) -> None:
        timeout_ms = int(timeout_s * 1000)
        limits = {"bootstrap_timeout_ms": timeout_ms, "request_timeout_ms": timeout_ms}
        super().__init__(**_arguments(access) | limits)


class Producer(_RdProducer):
    """A producer of librdkafka; `options` are its own."""

    def __init__(self, access: KafkaAccess, options: Mapping[str, Any]) -> None:
        super().__init__({**access.for_librdkafka(), **options}, logger=_SILENT)


def group_member(access: KafkaAccess, group: str) -> object:
    """Return the metadata by which a transaction names a consumer group that has no members."""
    consumer = _RdConsumer({**access.for_librdkafka(), "group.id": group, "log_level": 0})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _arguments(access: KafkaAccess) -> dict[str, Any]:
    found = access.for_python()
    if access.is_sasl and access.mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = _Tokens(access)
    return found


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for a client's id and secret, by OAuth 2.0's client credentials (RFC 6749, section 4.4)."""

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """Return a token that is still good for a while."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._token, life_s = self._ask()
                self._until = time.monotonic() + _RENEWED_AT * life_s
            return self._token

    def extensions(self) -> dict[str, str]:
        """Return what is sent beside it."""
        return self._access.extensions

    def _ask(self) -> tuple[str, float]:
        access = self._access
        named = f"{access.username}:{access.password.get_secret_value()}"  # as the other clients write it
        form = {"grant_type": "client_credentials"} | ({"scope": access.scope} if access.scope else {})
        request = urllib.request.Request(  # noqa: S310 - the setting takes http and https only
            access.token_url,
            data=urlencode(form).encode(),
            headers={"Authorization": f"Basic {b64encode(named.encode()).decode()}"},
        )
        with urllib.request.urlopen(request, timeout=_TOKEN_S) as answer:  # noqa: S310 - the same
            said = json.load(answer)
        return str(said["access_token"]), float(said.get("expires_in", 60))
