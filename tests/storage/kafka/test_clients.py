"""Clients with every property that the settings allow; what a client sets itself takes precedence."""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import replace

from lakehouse.dev.services.services import Endpoints
from lakehouse.operations.telemetry.broker import Broker
from lakehouse.settings.kafka_access import CLIENT_PROPERTIES
from lakehouse.sinks.kafka.rows import read_group
from lakehouse.storage.kafka.offsets import OffsetLooker
from lakehouse.storage.kafka.probe import require_broker
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.kafka.transactions import Reached, Record, Transactions

PROPERTIES = {
    "client.dns.lookup": "use_all_dns_ips",
    "client.id": "tests",
    "client.rack": "here",
    "connections.max.idle.ms": "180000",
    "metadata.max.age.ms": "180000",
    "reconnect.backoff.max.ms": "2000",
    "reconnect.backoff.ms": "50",
    "request.timeout.ms": "20000",
    "retry.backoff.ms": "100",
    "sasl.oauthbearer.extensions": "",
    "ssl.endpoint.identification.algorithm": "https",
}


def test_every_client_takes_every_property(services: Endpoints) -> None:
    topic, group = f"properties-{uuid.uuid4().hex[:8]}", "lakehouse-properties"
    assert set(PROPERTIES) == set(CLIENT_PROPERTIES)
    access = replace(services.access, properties=PROPERTIES)

    require_broker(access)
    assert create_topics(access, {topic: 1}) == [topic]
    with closing(Transactions(access, group, timeout_s=30)) as producer:
        producer.commit([Record(topic, b"k", b"v")], (topic, Reached(3, "note")))

    assert read_group(access, group, topic) == Reached(3, "note")
    with closing(OffsetLooker(access, topic)) as looker:
        ((first, end),) = looker.look().values()
    with closing(Broker(access)) as broker:
        assert broker.ends([topic])[topic][0].end == end > first
