"""How far topics reach, as a real broker says it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from lakehouse.errors import ServiceError
from lakehouse.sandbox.services import Endpoints
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


@pytest.fixture
def topic(services: Endpoints) -> str:
    """A topic of two partitions that has just been made."""
    name = f"new-{uuid.uuid4().hex}"
    create_topics(services.kafka, {name: 2})
    return name


@pytest.fixture
def broker(services: Endpoints) -> Iterator[Broker]:
    with closing(Broker(services.kafka)) as asked:
        yield asked


def test_a_topic_that_has_no_leader_yet_is_asked_for_again(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaConsumer, "end_offsets", without_a_leader(KafkaConsumer.end_offsets, 2))
    assert broker.ends([topic, "nobody's"]) == {topic: {0: Ends(0, 0), 1: Ends(0, 0)}}


def test_a_topic_that_never_gets_a_leader_is_a_reason_and_no_defect(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaConsumer, "end_offsets", without_a_leader(KafkaConsumer.end_offsets, 1000))
    with pytest.raises(ServiceError, match="does not answer: LeaderNotAvailableError"):
        broker.ends([topic])
