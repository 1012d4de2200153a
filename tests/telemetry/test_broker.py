"""How far topics reach, as a real broker says it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from lakehouse.errors import ServiceError
from lakehouse.local.services import Endpoints
from lakehouse.telemetry.broker import Broker, Ends
from lakehouse.topics import create_topics


def without_a_leader(ask: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Return a question that fails so often as the client does of a partition that was just made."""
    asked = 0

    def asking(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= times:
            raise KeyError(TopicPartition("new", 0))
        return ask(*arguments)

    return asking


def test_a_topic_that_has_no_leader_yet_is_asked_for_again(
    services: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"new-{uuid.uuid4().hex}"
    create_topics(services.kafka, {topic: 2})
    monkeypatch.setattr(KafkaConsumer, "end_offsets", without_a_leader(KafkaConsumer.end_offsets, 2))
    broker = Broker(services.kafka)
    try:
        assert broker.ends([topic, "nobody's"]) == {topic: {0: Ends(0, 0), 1: Ends(0, 0)}}
    finally:
        broker.close()


def test_a_topic_that_never_gets_a_leader_is_a_reason_and_no_defect(
    services: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"new-{uuid.uuid4().hex}"
    create_topics(services.kafka, {topic: 1})
    monkeypatch.setattr(KafkaConsumer, "end_offsets", without_a_leader(KafkaConsumer.end_offsets, 1000))
    broker = Broker(services.kafka)
    try:
        with pytest.raises(ServiceError, match="does not answer: LeaderNotAvailableError"):
            broker.ends([topic])
    finally:
        broker.close()
