"""Topic offsets, and the records in an offset range."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from statistics import mean
from typing import Any

from kafka.errors import KafkaTimeoutError, LeaderNotAvailableError

from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Consumer, TopicPartition
from lakehouse.storage.kafka.probe import require_broker, require_listening
from lakehouse.storage.kafka.refusals import asking
from lakehouse.storage.kafka.topics import describe_topic

_REQUEST_TIMEOUT_S = 30.0
_POLL_S = 0.1
_LOOKED_AT = 50  # records that are read to estimate the size of later records
_LOOKED_AT_BYTES = 64 * 1024  # bytes per fetch; a broker sends at least a whole batch, however large
_METADATA_MS = 5_000  # a new partition is noticed within this time


def ends_of(
    consumer: Consumer, partitions: Collection[TopicPartition], patience_s: float = 3.0
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return, for each partition, the first existing offset, and the offset after the last record.

    A new partition briefly has no leader, so kafka-python raises KeyError. This function raises
    LeaderNotAvailableError if there is still no leader after `patience_s` seconds, and other KafkaErrors for
    other failures.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        except KeyError as error:
            if time.monotonic() >= deadline:
                raise LeaderNotAvailableError(str(error)) from error
        time.sleep(_POLL_S)


def records_up_to(
    consumer: Consumer, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[Any]:
    """Yield the records of assigned partitions from `begins` up to, but not including, `ends`.

    Raises KafkaTimeoutError if no record arrives for 30 s, and other KafkaErrors for other failures.
    """
    for partition, begin in begins.items():
        consumer.seek(partition, begin)
    arrived = time.monotonic()
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        found = consumer.poll(timeout_ms=int(1000 * _POLL_S))
        if found:
            arrived = time.monotonic()
        elif time.monotonic() - arrived > _REQUEST_TIMEOUT_S:
            raise KafkaTimeoutError(f"no record has arrived for {_REQUEST_TIMEOUT_S:g} s")
        for records in found.values():
            yield from records


def offset_ranges(access: KafkaAccess, topic: str) -> dict[int, tuple[int, int]]:
    """Return each partition's first existing offset, and the offset after its last committed record.

    The result is empty if the topic does not exist.
    """
    require_broker(access)
    with (
        asking(access, {"topic": f"Describe topic {topic}"}),
        closing(Consumer(access, isolation_level="read_committed")) as consumer,
    ):
        return _ranges(access, consumer, topic)


class OffsetLooker:
    """A reader of a topic's offsets. It keeps one connection open, and is not thread-safe."""

    def __init__(self, access: KafkaAccess, topic: str) -> None:
        self._access = access
        self._topic = topic
        require_listening(access)
        with asking(access, {}):
            self._consumer = Consumer(
                access,
                isolation_level="read_committed",
                enable_auto_commit=False,
                metadata_max_age_ms=_METADATA_MS,
                auto_offset_reset="none",
                max_partition_fetch_bytes=_LOOKED_AT_BYTES,
            )

    def look(self) -> dict[int, tuple[int, int]]:
        """Return each partition's first existing offset, and the offset after its last committed record.

        The result is empty if the topic does not exist. Raises ServiceError if the broker does not answer, or
        denies the request.
        """
        with asking(self._access, {"topic": f"Describe topic {self._topic}"}):
            return _ranges(self._access, self._consumer, self._topic)

    def since(self, at: datetime) -> dict[int, int]:
        """Return, for each partition, the offset of the first record with a timestamp at or after `at`.

        If there is no such record, the result is the partition's end offset. Raises ServiceError as `look`
        does.
        """
        ranges = self.look()
        places = {TopicPartition(self._topic, n): int(at.timestamp() * 1000) for n in ranges}
        with asking(self._access, {"topic": f"Describe topic {self._topic}"}):
            found = self._consumer.offsets_for_times(places)
        return {
            one.partition: ranges[one.partition][1] if found.get(one) is None else found[one].offset
            for one in places
        }

    def record_bytes(self, partition: int, offset: int) -> float | None:
        """Return the mean uncompressed size in bytes (key plus value) of the first records from an offset on.

        Returns None if no record arrives immediately, or if kafka-python cannot read the records.
        """
        place = TopicPartition(self._topic, partition)
        try:
            self._consumer.assign([place])
            self._consumer.seek(place, offset)
            found = self._consumer.poll(_POLL_S * 1000, max_records=_LOOKED_AT).get(place, ())
        except Exception:  # noqa: BLE001 - the reader of the records will report the error
            return None
        finally:
            self._consumer.assign([])
        sizes = [max(0, one.serialized_key_size) + max(0, one.serialized_value_size) for one in found]
        return mean(sizes) if sizes else None

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


def _ranges(access: KafkaAccess, consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    numbers = consumer.partitions_for_topic(topic)
    if not numbers:
        describe_topic(access, topic)  # kafka-python reports a topic as missing if describing it is denied
        return {}
    partitions = [TopicPartition(topic, number) for number in numbers]
    first, end = ends_of(consumer, partitions)
    return {one.partition: (first[one], end[one]) for one in partitions}
