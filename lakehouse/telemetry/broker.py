"""The ends of topics and the age of their first unread records, over one lasting connection."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from lakehouse.errors import ServiceError
from lakehouse.spark.query_errors import what_of
from lakehouse.topics import ends_of, require_listening

_REQUEST_MS = 2_000
_FETCH_S = 0.5
_FETCH_BYTES = 64 * 1024  # a larger record still arrives

Coordinate = tuple[str, int]


@dataclass(frozen=True)
class Ends:
    """The first existing offset of a partition, and the one after the last committed record."""

    first: int
    end: int


class Broker:
    """Asks a broker about topics. For one thread at a time."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._consumer: KafkaConsumer | None = None
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
        except (KafkaError, OSError) as error:
            self.close()
            raise ServiceError(f"the broker at {self._servers} does not answer: {what_of(error)}") from error
        except ServiceError:
            self.close()
            raise
        return {
            topic: {
                number: Ends(first[TopicPartition(topic, number)], end[TopicPartition(topic, number)])
                for number in sorted(numbers)
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
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with suppress(KafkaError, OSError):
                consumer.close()

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
