"""Publish notifications to Kafka, exactly once for read-committed consumers, and store the alerts' state.

The state is stored in a separate compacted topic, `<topic>-state`, with one partition and one record per
alert. Each evaluation commits its state changes and notifications in one Kafka transaction. If the process is
killed, the state matches the sent notifications, and the next process continues from there. The transactional
id is derived from the topic's name, so a second process fences the first.

Another record in the state topic, the beat, contains the time of the last evaluation. It is sent every 20 s,
so readers can tell a healthy pipeline from an unwatched one. Foreign records, which lakehouse did not write,
are skipped with a warning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakehouse.common.errors import ServiceError
from lakehouse.operations.alerts.evaluating import Alert, Key, Notification, State
from lakehouse.operations.alerts.wording import alert_as_json, alert_in, as_message, key_of
from lakehouse.settings.alerts import state_topic
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Consumer, TopicPartition
from lakehouse.storage.kafka.offsets import ends_of, records_up_to
from lakehouse.storage.kafka.probe import require_listening
from lakehouse.storage.kafka.refusals import asking
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.storage.kafka.transactions import Record, Transactions, reported

TRANSACTION_TIMEOUT_S = 60
_PATIENCE_S = 20.0
_BEAT, _BEAT_EVERY = b"evaluated", timedelta(seconds=20)
_SILENT = timedelta(seconds=90)
"""A beat is stale when it is older than this time plus twice the evaluation interval."""
_NAMED = 3  # the maximum number of foreign records in a warning


@dataclass(frozen=True)
class Beat:
    """The time of the last evaluation (UTC), and the evaluation interval in seconds."""

    at: datetime
    every_s: float

    def is_fresh(self, now: datetime) -> bool:
        """Return whether the beat is recent enough that the rules are probably still being evaluated."""
        return now - self.at <= _SILENT + timedelta(seconds=2 * self.every_s)


class Publisher:
    """A publisher of notifications and alert state. `warn` is called for foreign records in the state topic.

    The methods raise ServiceError if the broker fails or refuses a request, and FencedError if another
    process has taken over.
    """

    def __init__(self, access: KafkaAccess, topic: str, warn: Callable[[str], None] = lambda _: None) -> None:
        self._access = access
        self._warn = warn
        self.topic = topic
        self._producer: Transactions | None = None
        self._beat: Beat | None = None

    def start(self) -> dict[Key, Alert]:
        """Fence any earlier publisher, and return the stored alerts."""
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
        """Commit the state changes and the notifications in one transaction.

        The transaction also contains the `beat`, if given. If there are no changes or notifications, the beat
        is sent only if the previous beat is at least 20 s old.
        """
        changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
        is_due = beat is not None and (self._beat is None or beat.at - self._beat.at >= _BEAT_EVERY)
        if not changed and not told and not is_due:
            return
        producer = self._producer
        if producer is None:
            raise ServiceError(f"the publisher of topic {self.topic} has not been started")
        with self._reported():
            require_listening(self._access)  # fail fast if the broker is down
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
        """Close the producer, even if the broker is down."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _reported(self) -> AbstractContextManager[None]:
        return reported(
            f"alerts to topic {self.topic}",
            self.close,
            f"alerts to topic {self.topic} were taken over by another `lakehouse alert`; only one may run at "
            "a time, unless their topics (alerts.topic) differ",
        )


def read_state(
    access: KafkaAccess, topic: str, warn: Callable[[str], None] = lambda _: None
) -> dict[Key, Alert]:
    """Return the pending and firing alerts in the state topic. `warn` is called for foreign records."""
    return read_whole_state(access, topic, warn)[0]


def read_whole_state(
    access: KafkaAccess, topic: str, warn: Callable[[str], None] = lambda _: None
) -> tuple[dict[Key, Alert], Beat | None]:
    """Return the alerts and the beat in the state topic. The beat is None if the topic contains no beat."""
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
        warn(f"{partition.topic} has foreign records, which were skipped: offset {offsets}{more}")
    return {alert.key: alert for alert in alerts.values()}, beat


def _beat_in(value: bytes | None) -> Beat | None:
    """Return the beat in a record, or None if the record is not a beat."""
    try:
        said = json.loads(value or b"")
        return Beat(datetime.fromisoformat(said["at"]).astimezone(UTC), float(said["every_s"]))
    except (ValueError, TypeError, KeyError):
        return None
