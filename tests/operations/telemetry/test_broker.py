"""How far topics reach and how long their records have waited, according to a real broker."""

from __future__ import annotations

import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from lakehouse.common.errors import ServiceError
from lakehouse.dev.services.services import Endpoints
from lakehouse.operations.telemetry.broker import Broker, Ends
from lakehouse.operations.telemetry.measures import partition_lags
from lakehouse.storage.kafka.topics import create_topics
from tests.support.pipeline import await_


def without_a_leader(ask: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Return a call that first fails this many times, as the client does for a new partition."""
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
    """Create a topic with two partitions."""
    name = f"new-{uuid.uuid4().hex}"
    create_topics(services.access, {name: 2})
    return name


@pytest.fixture
def broker(services: Endpoints) -> Iterator[Broker]:
    with closing(Broker(services.access)) as asked:
        yield asked


def test_a_topic_that_has_no_leader_yet_is_asked_for_again(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaConsumer, "end_offsets", without_a_leader(KafkaConsumer.end_offsets, 2))
    assert broker.ends([topic, "nobody's"]) == {topic: {0: Ends(0, 0), 1: Ends(0, 0)}}


@pytest.mark.soak
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


CODECS = ("none", "gzip", "lz4", "snappy", "zstd")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
MINUTE_MS = 60_000
MIB = 1 << 20


@pytest.fixture
def anything(services: Endpoints) -> str:
    """Create a topic with twelve partitions that accepts records of any time and keeps them compressed."""
    name = f"anything-{uuid.uuid4().hex}"
    any_time = {f"message.timestamp.{which}.max.ms": str(2**63 - 1) for which in ("before", "after")}
    create_topics(services.access, {name: 12}, {**any_time, "compression.type": "producer"})
    return name


def send_packed(services: Endpoints, topic: str, partition: int, codec: str, *values: bytes) -> None:
    """Send a batch of records, each a minute older than the next; the time of the last is now."""
    options = {"compression.type": codec, "linger.ms": 100, "message.max.bytes": 200 * MIB}
    producer = Producer({"bootstrap.servers": services.kafka, **options})
    for ago, value in zip(reversed(range(len(values))), values, strict=True):
        producer.produce(topic, value, partition=partition, timestamp=NOW_MS - ago * MINUTE_MS)
    assert producer.flush(30) == 0


def test_a_records_age_is_that_of_its_batch_whatever_packed_it_and_no_age_where_its_time_says_nothing(
    services: Endpoints, broker: Broker, anything: str
) -> None:
    """-1 is Kafka's "no timestamp"; the others are microseconds, the future, and years in no calendar."""
    for partition, codec in enumerate(CODECS):
        send_packed(services, anything, partition, codec, b"first", b"second")
    odd = (-1, -(10**17), 1000 * NOW_MS, NOW_MS + 10 * MINUTE_MS, 2**62)
    with closing(KafkaProducer(bootstrap_servers=services.kafka)) as producer:
        for partition, ms in enumerate(odd, len(CODECS)):
            producer.send(anything, b"x", partition=partition, timestamp_ms=ms).get()
    lags = partition_lags(anything, {1: 1, 2: 2}, broker.ends([anything])[anything], broker, NOW)

    assert [lag.records for lag in lags] == [2, 1, 0, 2, 2, *(1 for _ in odd), 0, 0]
    assert [lag.seconds for lag in lags] == [60.0, 60.0, 0.0, 60.0, 60.0, *(None for _ in odd), 0.0, 0.0]
    assert [lag.reason for lag in lags if lag.seconds is None] == [
        f"the time of the record at offset 0 of partition {partition} is {ms} ms, which is not plausible"
        for partition, ms in enumerate(odd, len(CODECS))
    ]


def test_a_record_that_unpacks_to_a_thousand_times_its_size_costs_no_memory(
    services: Endpoints, broker: Broker, anything: str
) -> None:
    send_packed(services, anything, 0, "gzip", bytes(64 * MIB))
    broker.ends([anything])
    tracemalloc.start()
    assert broker.times_of({(anything, 0): 0}) == {(anything, 0): NOW_MS}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MIB
