"""Records far larger than they look: compressed a thousandfold, by Kafka and in Delta's files.

The layers run as they do for a user: with a heap of one gigabyte, on a real broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError

from lakehouse.dev.services.services import Endpoints
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.offsets import OffsetLooker
from lakehouse.storage.kafka.topics import create_topics
from tests.support import processes
from tests.support.processes import LAKEHOUSE, Place, finish

NOON_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z
AS_SENT = {"compression.type": "producer"}
RUN = [LAKEHOUSE, "run", "all", "--trigger", "available-now"]


@pytest.fixture
def place(tmp_path: Path, services: Endpoints) -> Iterator[Place]:
    with processes.place(tmp_path / "home", services, database=13) as made:
        yield made


def send(place: Place, topic: str, values: list[bytes], key: bytes) -> None:
    """Send records to a topic, compressed by gzip, in one batch each."""
    producer = KafkaProducer(
        bootstrap_servers=place.services.kafka,
        acks="all",
        compression_type="gzip",
        batch_size=0,
        max_request_size=1 << 30,
    )
    try:
        for future in [producer.send(topic, value, key=key, timestamp_ms=NOON_MS) for value in values]:
            future.get(120)
    finally:
        producer.close()


def test_a_topic_that_we_create_refuses_records_by_their_real_size(services: Endpoints, place: Place) -> None:
    packed, unpacked = f"packed-{place.suffix}", f"unpacked-{place.suffix}"
    create_topics(services.access, {packed: 1}, AS_SENT)
    create_topics(services.access, {unpacked: 1})
    value = b"x" * (5 << 20)

    send(place, packed, [value], b"k")
    with pytest.raises(MessageSizeTooLargeError):
        send(place, unpacked, [value], b"k")


def test_the_size_of_records_is_their_real_one(services: Endpoints, place: Place) -> None:
    topic = f"packed-{place.suffix}"
    create_topics(services.access, {topic: 1}, AS_SENT)
    send(place, topic, [b"x" * 99_999, b"x" * 199_999], b"k")
    looker = OffsetLooker(services.access, topic)
    try:
        assert looker.look() == {0: (0, 2)}
        assert looker.record_bytes(0, 0) == 150_000
        assert looker.record_bytes(0, 1) == 200_000
        assert looker.record_bytes(0, 7) is None  # there is no such record
        assert looker.look() == {0: (0, 2)}
    finally:
        looker.close()


@pytest.mark.soak
def test_call_records_of_half_a_gigabyte_in_half_a_megabyte_go_through_all_layers(place: Place) -> None:
    topic = place.topics["analyticsTopic"]
    create_topics(KafkaAccess(place.services.kafka), {topic: 4}, AS_SENT)
    text = "x" * 252_000
    records = [
        json.dumps({"user1": f"u{number}", "user2": "v", "timestamp": NOON_MS, "analytics": text}).encode()
        for number in range(2_000)
    ]
    send(place, topic, records, b"k")

    done = finish([*RUN, "--stream", "calls"], place.environment)

    assert done.returncode == 0, done.stdout + done.stderr
    rows = place.table("gold.call_records")
    assert rows.num_rows == len(records)
    assert {len(value.as_py()) for value in rows["analytics"]} == {len(text)}


@pytest.mark.soak
def test_a_record_that_does_not_fit_in_memory_stops_its_own_topic_alone(place: Place) -> None:
    sale = json.dumps({"product": "p", "value": 3, "timestamp": NOON_MS}).encode()
    spent = json.dumps({"userId": "u", "amount": 1, "timestamp": NOON_MS}).encode()
    sales, transactions = place.topics["sales-events-v1"], place.topics["transactions-topic"]
    create_topics(KafkaAccess(place.services.kafka), {sales: 1, transactions: 1}, AS_SENT)
    send(place, sales, [sale], b"p")
    send(place, transactions, [spent, b'"' + b"x" * (400 << 20) + b'"'], b"u")

    done = finish([*RUN, "--stream", "transactions", "--stream", "sales"], place.environment)

    assert done.returncode == 1
    assert "error: bronze.transactions failed in micro-batch 2, which reads " in done.stderr
    assert (
        f"{transactions} 0:1-2: the heap was full (driver memory 1g). The micro-batch cannot be made smaller"
        in done.stderr
    )
    assert f"{sales}, {transactions}: the broker limits the compressed size of records" in done.stdout
    assert [str(row["total"]) for row in place.rows("gold.product_sales")] == ["3.000000000"]
    assert len(place.rows("silver.transactions")) == 1
