"""Deliver notifications to a webhook at least once and in order, from a background thread.

The thread reads the alert topic in a separate consumer group, and commits an offset once the webhook has
responded with a 2xx status. Until then, it retries with back-off. A webhook that is temporarily unavailable
therefore misses no notifications and delays nothing else. A retried notification keeps its event id, in the
body and in the header `Idempotency-Key`. A new webhook receives only notifications sent after its first
start. Foreign records in the topic are skipped with a warning.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lakehouse.common.errors import ServiceError
from lakehouse.operations.alerts.posting import PLAIN, AwayError, Posting, Receiver
from lakehouse.operations.alerts.wording import message_in
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import (
    Consumer,
    KafkaError,
    OffsetAndMetadata,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from lakehouse.storage.kafka.offsets import ends_of
from lakehouse.storage.kafka.refusals import Wanted, failure
from lakehouse.storage.kafka.topics import describe_topic
from lakehouse.storage.spark.query_errors import what_of

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Webhook:
    """A webhook that receives the topic's notifications. `warn` is called when it fails or recovers."""

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        url: str,
        warn: Callable[[str], None],
        *,
        how: Posting = PLAIN,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._access = access
        self._topic = topic
        self._receiver = Receiver(url, how)
        self._name = self._receiver.name
        self._warn = warn
        self._first_pause_s = first_pause_s
        self._trouble: str | None = None
        self._is_skipping = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)

    @property
    def group(self) -> str:
        """The webhook's consumer group, derived from its URL."""
        return f"lakehouse-alerts-webhook-{hashlib.sha256(self._receiver.url.encode()).hexdigest()[:16]}"

    @property
    def trouble(self) -> str | None:
        """The reason why notifications are not being delivered, or None if delivery works."""
        has_ended = self._thread.ident is not None and not self._thread.is_alive()
        if has_ended and not self._stopping.is_set():
            return f"{self._name} no longer receives notifications: its thread has ended"
        return self._trouble

    def start(self) -> None:
        """Find the start offsets, and start the thread. Raises ServiceError if the broker does not answer."""
        try:
            self._consumer = self._positioned()
        except KafkaError as error:
            raise ServiceError(f"{self._name}: {self._why(error)}") from error
        self._thread.start()

    def close(self, patience_s: float = 15.0) -> None:
        """Deliver pending notifications for up to `patience_s` seconds, then stop.

        Any that remain are delivered after the next start.
        """
        self._stopping.set()
        self._thread.join(patience_s)

    def _positioned(self) -> Consumer:
        consumer = Consumer(
            self._access,
            group_id=self.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # used if retention has deleted the next record
            isolation_level="read_committed",
        )
        try:
            self._position(consumer)
        except BaseException:
            _close(consumer)
            raise
        return consumer

    def _position(self, consumer: Consumer) -> None:
        partitions = [
            TopicPartition(self._topic, n) for n in consumer.partitions_for_topic(self._topic) or ()
        ]
        if not partitions:
            describe_topic(self._access, self._topic)  # raises if the user may not see the topic
            # The broker may have just started. A consumer without partitions would never receive a record.
            raise UnknownTopicOrPartitionError(self._topic)
        consumer.assign(partitions)
        _, ends = ends_of(consumer, partitions)
        new = {one: ends[one] for one in partitions if consumer.committed(one) is None}
        if new:
            consumer.commit({one: OffsetAndMetadata(end, "", -1) for one, end in new.items()})
        for one in partitions:
            consumer.seek(one, consumer.committed(one))

    def _work(self) -> None:
        consumer: Consumer | None = self._consumer
        pause_s, is_refused = self._first_pause_s, False
        while True:
            try:
                if consumer is None:
                    consumer = self._positioned()
                is_last, polled = self._stopping.is_set(), consumer.poll(timeout_ms=200, max_records=1)
                for one, records in polled.items():
                    self._take(records[0])
                    consumer.commit({one: OffsetAndMetadata(records[0].offset + 1, "", -1)})
                if self._trouble is not None and (polled or not is_refused):
                    self._warn(f"{self._name} answers again")
                    self._trouble, pause_s = None, self._first_pause_s
                if is_last and not polled:
                    break
            except Exception as error:  # noqa: BLE001 - the thread must survive every failure
                is_refused, is_new = isinstance(error, AwayError), self._trouble is None
                self._trouble = f"{self._name} is unavailable; its notifications are kept: {self._why(error)}"
                if is_new:
                    self._warn(self._trouble)
                _close(consumer)
                consumer = None
                if self._stopping.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        _close(consumer)

    def _why(self, error: Exception) -> str:
        if isinstance(error, KafkaError):
            wanted: Wanted = {"topic": f"Read topic {self._topic}", "group": f"Read group {self.group}"}
            return str(failure(self._access, error, wanted))
        return str(error) if isinstance(error, AwayError) else what_of(error)

    def _take(self, record: Any) -> None:
        """Deliver the notification in a record. Consecutive foreign records cause only one warning."""
        message = message_in(record.value)
        if message is not None:
            self._receiver.post(record.value, message["event_id"])
        elif not self._is_skipping:
            place = f"offset {record.offset:,} in partition {record.partition} of topic {self._topic}"
            self._warn(f"{self._name} skips {place}, which is not a notification")
        self._is_skipping = message is None


def _close(consumer: Consumer | None) -> None:
    if consumer is not None:
        with suppress(Exception):
            consumer.close()
