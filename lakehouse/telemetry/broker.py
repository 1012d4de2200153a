"""The ends of topics and the time of their first unread records, over lasting connections.

Records are compressed in batches, a thousand to one if somebody wants, and each batch begins with a header
that is not. So the time of a record is that of its batch, by the header alone: nothing is unpacked, and no
codec is needed. A partition's first unread batch is fetched as a whole, at most as large as its topic allows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from lakehouse.errors import ServiceError
from lakehouse.kafka.topics import admin_client, ends_of, require_listening
from lakehouse.spark.query_errors import what_of
from lakehouse.telemetry.open_transactions import open_transactions
from lakehouse.telemetry.values import OpenTransaction

_REQUEST_MS = 2_000
_LOOK_S = 2.0
_LAST_VERSION = 12  # of fetch requests that name topics by their names
_READ_COMMITTED = 1
_NO_SESSION = -1
_DELETE_HORIZON = 0x40  # in a compacted batch, whose first time then is another one

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
        self._manager: KafkaConnectionManager | None = None
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
        """Return the timestamp in ms of the batch with the first record from each offset on, if it is told.

        The answer for an offset is kept.
        """
        wanted = {(*place, offset) for place, offset in offsets.items()}
        self._times = {place: ms for place, ms in self._times.items() if place in wanted}
        try:
            self._look_up([one for one in wanted if one not in self._times])
        except Exception:  # noqa: BLE001 - the number of waiting records is known even so
            self.close()
        known = ((place, self._times.get((*place, offset))) for place, offset in offsets.items())
        return {place: ms for place, ms in known if ms is not None}

    def close(self) -> None:
        """Disconnect, whatever state the broker is in."""
        for client in (self._consumer, self._admin):
            if client is not None:
                with suppress(Exception):
                    client.close()
        self._consumer = self._admin = self._manager = None

    def _held(self, end: Mapping[TopicPartition, int]) -> dict[TopicPartition, OpenTransaction]:
        """Return the transactions behind the last stable offsets; none from a broker that does not tell."""
        try:
            if self._admin is None:
                self._admin = admin_client(self._servers, _REQUEST_MS / 1000)
            return open_transactions(self._admin, end)
        except KafkaError:
            return {}

    def _look_up(self, missing: Collection[tuple[str, int, int]]) -> None:
        if not missing:
            return
        self._connected()
        manager, deadline = self._manager, time.monotonic() + _LOOK_S
        if manager is None:
            raise TypeError("the client has no connections")
        for topic, number, offset in missing:
            if time.monotonic() > deadline:
                return
            leader = manager.cluster.leader_for_partition(TopicPartition(topic, number))
            answer = manager.run(manager.send, _request(topic, number, offset), leader)
            (found,) = (one for of_topic in answer.responses for one in of_topic.partitions)
            if found.error_code:
                manager.cluster.request_update()  # perhaps another broker leads by now
            elif (ms := _time_in(found.records, offset)) is not None:
                self._times[topic, number, offset] = ms

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
                kafka_client=self._client,
            )
        return self._consumer

    def _client(self, **configs: Any) -> KafkaNetClient:
        """Make the consumer's client, whose connections take other requests, too."""
        net = NetworkSelector(**configs)
        self._manager = KafkaConnectionManager(net, **configs)
        return KafkaNetClient(net, self._manager)


def _request(topic: str, number: int, offset: int) -> FetchRequest:
    """Return the question for the batch at an offset: of more than a byte the broker sends one batch."""
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=number,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1,
    )
    return FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=1,
        isolation_level=_READ_COMMITTED,
        session_id=0,
        session_epoch=_NO_SESSION,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=FetchRequest.min_version_for_isolation_level(_READ_COMMITTED),
        max_version=_LAST_VERSION,
    )


def _time_in(records: bytes | None, offset: int) -> int | None:
    """Return the time in the header of the first batch that reaches the offset, null without one."""
    for batch in MemoryRecords(records or b""):
        if isinstance(batch, DefaultRecordBatch) and batch.last_offset >= offset:
            is_first_another = batch.timestamp_type or batch.attributes & _DELETE_HORIZON
            return int(batch.max_timestamp if is_first_another else batch.first_timestamp)
    return None
