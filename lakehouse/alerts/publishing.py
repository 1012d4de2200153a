"""Notifications in a Kafka topic, exactly once for a read-committed consumer, and the state behind them.

The state is a topic of its own, `<topic>-state`: compacted, with one partition, and a record of its alerts
for each rule. The changes of the state at one look, and its notifications, are sent in one transaction. So a
process that is killed at any point has sent exactly what its state says, and the next one continues from it.
The transactional id is that of the topic: a second process fences the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from lakehouse.alerts.evaluating import (
    Alert,
    Key,
    Notification,
    State,
    as_message,
    state_as_json,
    state_from_json,
)
from lakehouse.errors import ServiceError
from lakehouse.sinks.transactional import let_go, reported
from lakehouse.topics import create_topics, ends_of, require_listening

TRANSACTION_TIMEOUT_S = 60
_REQUEST_MS = 10_000
_DELIVERY_MS = 20_000  # by default a record is waited for two minutes, even if the broker is back
_POLL_MS = 1000


def state_topic(topic: str) -> str:
    """Return the topic that holds the state."""
    return f"{topic}-state"


class Publisher:
    """Keeps the state and sends its notifications.

    Raises ServiceError if the broker does not accept them: a FencedError if another process has taken over.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._servers = bootstrap_servers
        self.topic = topic
        self._producer: KafkaProducer | None = None

    def start(self) -> dict[Key, Alert]:
        """Fence any earlier publisher, and return the state to continue from."""
        create_topics(self._servers, {self.topic: 1})
        create_topics(self._servers, {state_topic(self.topic): 1}, {"cleanup.policy": "compact"})
        with self._reported():
            self._producer = producer = KafkaProducer(
                bootstrap_servers=self._servers.split(","),
                transactional_id=f"lakehouse-alerts-to-{self.topic}",
                transaction_timeout_ms=1000 * TRANSACTION_TIMEOUT_S,
                request_timeout_ms=_REQUEST_MS,
                delivery_timeout_ms=_DELIVERY_MS,
                max_block_ms=_DELIVERY_MS,
            )
            producer.init_transactions()  # ends the transaction of a killed process
            return read_state(self._servers, self.topic)

    def publish(self, before: State, after: State, told: Sequence[Notification]) -> None:
        """Commit the changed state, by rule, together with the notifications; does nothing without either."""
        changed = _by_rule(after)
        old = _by_rule(before)
        records = {
            rule: changed.get(rule)
            for rule in sorted(old.keys() | changed.keys())
            if changed.get(rule) != old.get(rule)
        }
        if not records and not told:
            return
        producer = self._producer
        if producer is None:
            raise ServiceError(f"alerts to topic {self.topic} have not been started")
        with self._reported():
            require_listening(self._servers)  # does not wait for a broker that is gone
            producer.begin_transaction()
            sent = [
                producer.send(
                    state_topic(self.topic),
                    key=rule.encode(),
                    value=None if text is None else text.encode(),
                    partition=0,
                )
                for rule, text in records.items()
            ]
            sent += [
                producer.send(
                    self.topic,
                    key=one.alert.id.encode(),
                    value=json.dumps(as_message(one), ensure_ascii=False).encode(),
                    headers=[("event_id", one.id.encode())],
                )
                for one in told
            ]
            for record in sent:
                record.get()
            producer.commit_transaction()

    def close(self) -> None:
        """Disconnect, whatever state the broker is in."""
        producer, self._producer = self._producer, None
        let_go(producer)

    def _reported(self) -> AbstractContextManager[None]:
        return reported(
            f"alerts to topic {self.topic}",
            self.close,
            f"alerts to topic {self.topic} were taken over by another `lakehouse alert`; only one may run at "
            "a time, unless their topics differ (LAKEHOUSE_ALERT_TOPIC)",
        )


def read_state(bootstrap_servers: str, topic: str) -> dict[Key, Alert]:
    """Return the alerts in the state topic, including pending ones."""
    texts: dict[str, str | None] = {}
    partition = TopicPartition(state_topic(topic), 0)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers.split(","), group_id=None, isolation_level="read_committed"
    )
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = ends_of(consumer, [partition])[1][partition]
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=_POLL_MS).values():
                for record in records:
                    texts[record.key.decode()] = None if record.value is None else record.value.decode()
    finally:
        consumer.close()
    state: dict[Key, Alert] = {}
    for text in texts.values():
        if text is not None:
            state |= state_from_json(text)
    return state


def _by_rule(state: State) -> Mapping[str, str]:
    alerts = sorted(state.values(), key=lambda one: one.key)
    return {rule: state_as_json(list(found)) for rule, found in groupby(alerts, lambda one: one.rule)}
