"""Notifications to a webhook, at least once and in order, by a thread that nothing waits for.

It sends what the topic has. A consumer group of the webhook's own holds its progress, and advances when the
webhook has answered 2xx. Until then the request is retried with back-off. So a webhook that is away misses
nothing and blocks nothing. A repeated notification has the same event id, in the body and in the header
`Idempotency-Key`. A webhook begins with the notifications sent after it was first configured.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

from lakehouse.errors import ServiceError
from lakehouse.topics import ends_of

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_TIMEOUT_S = 10.0


class Webhook:
    """Sends the topic's notifications to a URL; `warn` is told when the webhook is away, and back again."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        url: str,
        warn: Callable[[str], None],
        *,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._servers = bootstrap_servers
        self._topic = topic
        self._url = url
        self._name = f"webhook at {urlsplit(url).hostname}"  # the rest of a URL may be secret
        self._warn = warn
        self._first_pause_s = first_pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)

    @property
    def group(self) -> str:
        """The consumer group that holds its progress."""
        return f"lakehouse-alerts-webhook-{hashlib.sha256(self._url.encode()).hexdigest()[:16]}"

    def start(self) -> None:
        """Determine where to begin, and begin. Raises ServiceError if the broker does not answer."""
        try:
            self._consumer = self._positioned()
        except KafkaError as error:
            raise ServiceError(f"{self._name}: the broker failed a request: {error}") from error
        self._thread.start()

    def close(self, patience_s: float = 15.0) -> None:
        """Send what can be sent at once, and stop; the rest is sent next time."""
        self._stopping.set()
        self._thread.join(patience_s)

    def _positioned(self) -> KafkaConsumer:
        consumer = KafkaConsumer(
            bootstrap_servers=self._servers.split(","),
            group_id=self.group,
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        partitions = [
            TopicPartition(self._topic, n) for n in consumer.partitions_for_topic(self._topic) or ()
        ]
        if not partitions:  # just after the broker's start; without partitions nothing would ever arrive
            consumer.close()
            raise UnknownTopicOrPartitionError(self._topic)
        consumer.assign(partitions)
        _, ends = ends_of(consumer, partitions)
        new = {one: ends[one] for one in partitions if consumer.committed(one) is None}
        if new:
            consumer.commit({one: OffsetAndMetadata(end, "", -1) for one, end in new.items()})
        for one in partitions:
            consumer.seek(one, consumer.committed(one))
        return consumer

    def _work(self) -> None:
        pause_s, consumer = self._first_pause_s, self._consumer
        while True:
            try:
                if consumer is None:
                    consumer = self._positioned()
                is_last = self._stopping.is_set()
                for one, records in consumer.poll(timeout_ms=200, max_records=1).items():
                    is_last = False
                    self._deliver(records[0].value)
                    consumer.commit({one: OffsetAndMetadata(records[0].offset + 1, "", -1)})
                    if pause_s > self._first_pause_s:
                        self._warn(f"{self._name} answers again")
                        pause_s = self._first_pause_s
                if is_last:
                    break
            except (_AwayError, KafkaError, OSError) as error:
                if pause_s == self._first_pause_s:
                    self._warn(f"{self._name} is away; its notifications are kept: {error}")
                _close(consumer)
                consumer = None
                if self._stopping.wait(pause_s):
                    return
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        _close(consumer)

    def _deliver(self, body: bytes) -> None:
        request = urllib.request.Request(  # noqa: S310 - the setting takes http and https only
            self._url,
            data=body,
            headers={
                "Content-Type": "application/json; charset=utf-8",
                "Idempotency-Key": json.loads(body)["event_id"],
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310 - the same
                pass
        except urllib.error.HTTPError as error:
            raise _AwayError(f"it answered {error.code}") from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise _AwayError(str(getattr(error, "reason", error))) from None


class _AwayError(Exception):
    """The webhook has not accepted a notification."""


def _close(consumer: KafkaConsumer | None) -> None:
    if consumer is not None:
        with suppress(KafkaError, OSError):
            consumer.close()
