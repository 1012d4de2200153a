"""How far topics reach, as a real broker says it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from lakehouse.errors import ServiceError
from lakehouse.sandbox.services import Endpoints
from lakehouse.telemetry.broker import Broker, Ends
from lakehouse.topics import create_topics
from tests.pipeline import await_


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


def test_an_open_transaction_is_named_until_it_ends(broker: Broker, topic: str, services: Endpoints) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    with closing(KafkaProducer(bootstrap_servers=services.kafka, transactional_id=f"of-{topic}")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, b"hidden", partition=0).get(timeout=30)

        ends = broker.ends([topic])[topic]
        held = ends[0].open_transaction
        assert ends == {0: Ends(0, 0, held), 1: Ends(0, 0)}
        assert held is not None
        assert (held.offsets, held.producer) == (3, f"of-{topic}")
        assert began <= held.since <= datetime.now(UTC) + timedelta(seconds=1)

        producer.commit_transaction()
    await_(lambda: broker.ends([topic]) == {topic: {0: Ends(0, 4), 1: Ends(0, 0)}})
