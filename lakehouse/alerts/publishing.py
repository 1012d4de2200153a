"""Notifications in a Kafka topic, exactly once for a read-committed consumer, and the state behind them.

The state is a topic of its own, `<topic>-state`: compacted, with one partition, and a record for each alert.
The changes of the state at one look, and its notifications, are sent in one transaction. So a process that is
killed at any point has sent exactly what its state says, and the next one continues from it. One record there
says when the rules were last evaluated, so that readers can tell a quiet pipeline from an unwatched one:
it is sent again every 20 s. The
transactional id is that of the topic: a second process fences the first. Records that others have written
there are passed over, and named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakehouse.alerts.evaluating import Alert, Key, Notification, State
from lakehouse.alerts.wording import alert_as_json, alert_in, as_message, key_of
from lakehouse.errors import ServiceError
from lakehouse.kafka.clients import Consumer, TopicPartition
from lakehouse.kafka.offsets import ends_of, records_up_to
from lakehouse.kafka.probe import require_listening
from lakehouse.kafka.refusals import asking
from lakehouse.kafka.topics import create_topics
from lakehouse.kafka.transactions import Record, Transactions, reported
from lakehouse.settings.kafka_access import KafkaAccess

TRANSACTION_TIMEOUT_S = 60
_PATIENCE_S = 20.0
_BEAT, _BEAT_EVERY = b"evaluated", timedelta(seconds=20)
_SILENT = timedelta(seconds=90)
"""Beyond the time between two evaluations, this long without a sign no process counts as evaluating."""
_NAMED = 3  # records of others, in a message


@dataclass(frozen=True)
class Beat:
    """When the rules were last evaluated, UTC, and how many seconds lie between two evaluations."""

    at: datetime
    every_s: float

    def is_fresh(self, now: datetime) -> bool:
        """Tell whether a process evaluates the rules, as far as others can tell."""
        return now - self.at <= _SILENT + timedelta(seconds=2 * self.every_s)


def state_topic(topic: str) -> str:
    """Return the topic that holds the state."""
    return f"{topic}-state"


class Publisher:
    """Keeps the state and sends its notifications; `warn` gets a line for records that are not alerts.

    Raises ServiceError if the broker does not accept them: a FencedError if another process has taken over.
    """

    def __init__(self, access: KafkaAccess, topic: str, warn: Callable[[str], None] = lambda _: None) -> None:
        self._access = access
        self._warn = warn
        self.topic = topic
        self._producer: Transactions | None = None
        self._beat: Beat | None = None

    def start(self) -> dict[Key, Alert]:
        """Fence any earlier publisher, and return the state to continue from."""
        create_topics(self._access, {self.topic: 1})
        create_topics(self._access, {state_topic(self.topic): 1}, {"cleanup.policy": "compact"})
        with self._reported():
            self._producer = Transactions(
                self._access,
                f"lakehouse-alerts-to-{self.topic}",
                timeout_s=TRANSACTION_TIMEOUT_S,
                patience_s=_PATIENCE_S,
            )
            return read_state(self._access, self.topic, self._warn)

    def publish(
        self, before: State, after: State, told: Sequence[Notification], beat: Beat | None = None
    ) -> None:
        """Commit the changed state together with the notifications; does nothing without either.

        A `beat` goes with them, and alone if the last one is 20 s old.
        """
        changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
        is_due = beat is not None and (self._beat is None or beat.at - self._beat.at >= _BEAT_EVERY)
        if not changed and not told and not is_due:
            return
        producer = self._producer
        if producer is None:
            raise ServiceError(f"alerts to topic {self.topic} have not been started")
        with self._reported():
            require_listening(self._access)  # does not wait for a broker that is gone
            records = [
                Record(
                    state_topic(self.topic),
                    key_of(key),
                    None if (alert := after.get(key)) is None else alert_as_json(alert),
                    partition=0,
                )
                for key in changed
            ]
            records += [
                Record(
                    self.topic,
                    one.alert.id.encode(),
                    json.dumps(as_message(one), ensure_ascii=False).encode(),
                    headers=[("event_id", one.id.encode())],
                )
                for one in told
            ]
            if beat is not None:
                said = {"at": beat.at.isoformat(), "every_s": beat.every_s}
                records.append(Record(state_topic(self.topic), _BEAT, json.dumps(said).encode(), partition=0))
            producer.commit(records)
            self._beat = beat or self._beat

    def close(self) -> None:
        """Disconnect, whatever state the broker is in."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _reported(self) -> AbstractContextManager[None]:
        return reported(
            f"alerts to topic {self.topic}",
            self.close,
            f"alerts to topic {self.topic} were taken over by another `lakehouse alert`; only one may run at "
            "a time, unless their topics differ (LAKEHOUSE_ALERT_TOPIC)",
        )


def read_state(
    access: KafkaAccess, topic: str, warn: Callable[[str], None] = lambda _: None
) -> dict[Key, Alert]:
    """Return the alerts in the state topic, including pending ones; `warn` gets a line on other records."""
    return read_whole_state(access, topic, warn)[0]


def read_whole_state(
    access: KafkaAccess, topic: str, warn: Callable[[str], None] = lambda _: None
) -> tuple[dict[Key, Alert], Beat | None]:
    """Return the same, and when the rules were last evaluated; null if nothing says so."""
    beat: Beat | None = None
    alerts, foreign = dict[bytes, Alert](), list[int]()
    partition = TopicPartition(state_topic(topic), 0)
    with (
        asking(access, {"topic": f"Read topic {partition.topic}"}),
        closing(Consumer(access, group_id=None, isolation_level="read_committed")) as consumer,
    ):
        consumer.assign([partition])
        first, ends = ends_of(consumer, [partition])
        for record in records_up_to(consumer, first, ends):
            if record.key == _BEAT:
                beat = _beat_in(record.value) or beat
                continue
            alert = None if record.value is None else alert_in(record.key, record.value)
            if alert is not None:
                alerts[record.key] = alert
            elif record.value is None and record.key is not None:
                alerts.pop(record.key, None)
            else:
                foreign.append(record.offset)
    if foreign:
        offsets = ", ".join(f"{offset:,}" for offset in foreign[:_NAMED])
        more = f" and {len(foreign) - _NAMED:,} more" if len(foreign) > _NAMED else ""
        warn(f"{partition.topic} has records that are no alert's state, passed over: offset {offsets}{more}")
    return {alert.key: alert for alert in alerts.values()}, beat


def _beat_in(value: bytes | None) -> Beat | None:
    """Return what a record says, null if somebody else has written it."""
    try:
        said = json.loads(value or b"")
        return Beat(datetime.fromisoformat(said["at"]).astimezone(UTC), float(said["every_s"]))
    except (ValueError, TypeError, KeyError):
        return None
