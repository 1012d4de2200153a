"""The ends of topics, and the age of their first unread records, over lasting connections."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from lakehouse.errors import ServiceError
from lakehouse.spark.query_errors import what_of
from lakehouse.telemetry.open_transactions import open_transactions
from lakehouse.telemetry.values import OpenTransaction
from lakehouse.topics import ends_of, require_listening

_REQUEST_MS = 2_000
_FETCH_S = 0.5
_FETCH_BYTES = 64 * 1024  # a larger record still arrives

Coordinate = tuple[str, int]


@dataclass(frozen=True)
class Ends:
    """The first existing offset of a partition, and the one after the last committed record.

    `open_transaction` is what hides records from there on, null for nothing.
    """

    first: int
    end: int
    open_transaction: OpenTransaction | None = None


class Broker:
    """Asks a broker about topics. For one thread at a time."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._consumer: KafkaConsumer | None = None
        self._admin: KafkaAdminClient | None = None
        self._times: dict[tuple[str, int, int], int] = {}

    def ends(self, topics: Collection[str]) -> dict[str, dict[int, Ends]]:
        """Return the ends of every partition of the existing ones among the topics.

        Raises ServiceError if no broker answers within seconds.
        """
        try:
            consumer = self._connected()
            found = {topic: consumer.partitions_for_topic(topic) or set() for topic in topics}
            partitions = [TopicPartition(topic, one) for topic, numbers in found.items() for one in numbers]
            first, end = ends_of(consumer, partitions)
            held = self._held(end)
        except (KafkaError, OSError) as error:
            self.close()
            raise ServiceError(f"the broker at {self._servers} does not answer: {what_of(error)}") from error
        except ServiceError:
            self.close()
            raise
        return {
            topic: {
                one.partition: Ends(first[one], end[one], held.get(one))
                for one in (TopicPartition(topic, number) for number in sorted(numbers))
            }
            for topic, numbers in found.items()
            if numbers
        }

    def times_of(self, offsets: Mapping[Coordinate, int]) -> dict[Coordinate, int]:
        """Return the timestamp in ms of the first record from each offset on, if one arrives at once.

        The answer for an offset is kept.
        """
        wanted = {(*place, offset) for place, offset in offsets.items()}
        self._times = {place: ms for place, ms in self._times.items() if place in wanted}
        missing = {
            TopicPartition(*place): offset
            for place, offset in offsets.items()
            if (*place, offset) not in self._times
        }
        if missing:
            try:
                self._fetch(missing)
            except (KafkaError, OSError, ServiceError):
                self.close()  # the number of waiting records is known even so
        known = ((place, self._times.get((*place, offset))) for place, offset in offsets.items())
        return {place: ms for place, ms in known if ms is not None}

    def close(self) -> None:
        """Disconnect, whatever state the broker is in."""
        for client in (self._consumer, self._admin):
            if client is not None:
                with suppress(KafkaError, OSError):
                    client.close()
        self._consumer = self._admin = None

    def _held(self, end: Mapping[TopicPartition, int]) -> dict[TopicPartition, OpenTransaction]:
        """Return the transactions behind the last stable offsets; none from a broker that does not tell."""
        try:
            if self._admin is None:
                self._admin = KafkaAdminClient(
                    bootstrap_servers=self._servers.split(","),
                    request_timeout_ms=_REQUEST_MS,
                    bootstrap_timeout_ms=_REQUEST_MS,
                )
            return open_transactions(self._admin, end)
        except KafkaError:
            return {}

    def _fetch(self, offsets: Mapping[TopicPartition, int]) -> None:
        consumer = self._connected()
        consumer.assign(list(offsets))
        for partition, offset in offsets.items():
            consumer.seek(partition, offset)
        missing, deadline = set(offsets), time.monotonic() + _FETCH_S
        while missing and time.monotonic() < deadline:
            for partition, records in consumer.poll(timeout_ms=100, max_records=1).items():
                self._times[partition.topic, partition.partition, offsets[partition]] = records[0].timestamp
                missing.discard(partition)
                consumer.pause(partition)
        consumer.assign([])

    def _connected(self) -> KafkaConsumer:
        # If a broker is gone, a client retries until its request times out; checking the port does not.
        require_listening(self._servers, timeout_s=0.5)
        if self._consumer is None:
            self._consumer = KafkaConsumer(
                bootstrap_servers=self._servers.split(","),
                group_id=None,
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                metadata_max_age_ms=10_000,
                request_timeout_ms=_REQUEST_MS,
                bootstrap_timeout_ms=_REQUEST_MS,
                fetch_max_wait_ms=50,
                max_partition_fetch_bytes=_FETCH_BYTES,
            )
        return self._consumer
