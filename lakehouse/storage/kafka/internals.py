"""The only module that uses undocumented parts of kafka-python (docs/internals.md)."""

from __future__ import annotations

from typing import Any

from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.partitioner import murmur2
from kafka.protocol.consumer import FetchRequest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Consumer, TopicPartition

_LAST_VERSION = 12  # the last Fetch version that identifies topics by name
_READ_COMMITTED = 1
_NO_SESSION = -1
_DELETE_HORIZON = 0x40  # set in a compacted batch, where it changes the meaning of the first timestamp


class HeaderConsumer(Consumer):
    """A consumer that can also read the timestamp in a record batch's header.

    The records in a batch can be compressed a thousand to one, but the header is never compressed, so reading
    the header requires no codec. The whole batch is fetched, but the topic limits its size.
    """

    def __init__(self, access: KafkaAccess, **options: Any) -> None:
        self._asked: KafkaConnectionManager | None = None
        super().__init__(access, kafka_client=self._made, **options)

    def batch_ms(self, topic: str, number: int, offset: int) -> int | None:
        """Return the time (epoch ms) of the first batch that ends at or after `offset`, or None if unknown.

        Raises kafka-python's errors if the broker does not answer.
        """
        manager = self._asked
        if manager is None:
            raise TypeError("the client has no connections")
        leader = manager.cluster.leader_for_partition(TopicPartition(topic, number))
        answer = manager.run(manager.send, _request(topic, number, offset), leader)
        (found,) = (one for of_topic in answer.responses for one in of_topic.partitions)
        if found.error_code:
            manager.cluster.request_update()  # another broker may be the leader by now
            return None
        return _time_in(found.records, offset)

    def _made(self, **configs: Any) -> KafkaNetClient:
        net = NetworkSelector(**configs)
        self._asked = KafkaConnectionManager(net, **configs)
        return KafkaNetClient(net, self._asked)


def hashed(key: bytes) -> int:
    """Return the hash that Kafka's default partitioner uses to choose a partition."""
    return int(murmur2(key)) & 0x7FFFFFFF


def record_bytes(key: bytes, value: bytes | None) -> int:
    """Return the maximum size in bytes of an uncompressed batch that contains only this record."""
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, []))


def _request(topic: str, number: int, offset: int) -> FetchRequest:
    """Return a fetch request for one batch: with a limit of one byte, the broker sends a single batch."""
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
    """Return the header time of the first batch that ends at or after `offset`, or None if no batch does."""
    for batch in MemoryRecords(records or b""):
        if isinstance(batch, DefaultRecordBatch) and batch.last_offset >= offset:
            is_first_another = batch.timestamp_type or batch.attributes & _DELETE_HORIZON
            return int(batch.max_timestamp if is_first_another else batch.first_timestamp)
    return None
