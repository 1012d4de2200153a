"""All records that a topic contains, including those of transactions that were aborted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from lakehouse.common.errors import ServiceError
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Consumer, TopicPartition
from lakehouse.storage.kafka.offsets import ends_of, records_up_to
from lakehouse.storage.kafka.probe import require_broker
from lakehouse.storage.kafka.refusals import asking
from lakehouse.storage.kafka.topics import describe_topic


def contents(access: KafkaAccess, topic: str) -> Iterator[Any] | None:
    """Return a topic's records up to its end at this moment, or None if there is no such topic.

    Nothing is committed to the broker. Records that arrive in the meantime are not read. This function and
    the iterator raise ServiceError if the broker does not answer, or AccessDeniedError if reading is denied.
    """
    require_broker(access)
    return None if describe_topic(access, topic) is None else _records(access, topic)


def _records(access: KafkaAccess, topic: str) -> Iterator[Any]:
    options = {
        "isolation_level": "read_uncommitted",
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
    }
    with asking(access, {"topic": f"Read topic {topic}"}), closing(Consumer(access, **options)) as consumer:
        partitions = [TopicPartition(topic, one) for one in consumer.partitions_for_topic(topic) or ()]
        if not partitions:
            raise ServiceError(f"the Kafka broker at {access} does not name the partitions of topic {topic}")
        consumer.assign(partitions)
        first, end = ends_of(consumer, partitions)
        for one in records_up_to(consumer, first, end):
            if one.offset < end[TopicPartition(topic, one.partition)]:
                yield one
