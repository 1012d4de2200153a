"""The newest records of a topic, read without a consumer group."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from lakehouse.common.errors import SettingsError
from lakehouse.common.nearest import no_such
from lakehouse.common.record_lines import Record
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Consumer, TopicPartition
from lakehouse.storage.kafka.offsets import ends_of, records_up_to
from lakehouse.storage.kafka.probe import require_broker
from lakehouse.storage.kafka.refusals import asking
from lakehouse.storage.kafka.topics import describe_topic

_MOST_OFFSETS = 100_000

Places = dict[TopicPartition, int]
"""An offset for each partition."""


def newest_records(access: KafkaAccess, topic: str, most: int) -> list[Record]:
    """Return up to `most` of a topic's newest committed records, by partition and offset.

    Each partition contributes about the same number of records; one that has fewer contributes all of them.
    Offsets without a record, for example after compaction or at the end of a transaction, are skipped.
    Nothing is committed to the broker, so other consumers are not affected. Records that arrive in the
    meantime are not read.

    Raises SettingsError if the topic does not exist or has no records, and ServiceError if the broker does
    not answer, denies the request, or sends no records for 30 s.
    """
    require_broker(access)
    options = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "none"}
    with (
        asking(access, {"topic": f"Read topic {topic}"}),
        closing(Consumer(access, **options)) as consumer,
    ):
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:
            describe_topic(access, topic)  # raises AccessDeniedError if that is why it seems missing
            raise SettingsError(no_such("topic", topic, consumer.topics()))
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        first, end = ends_of(consumer, partitions)
        found = _read(consumer, first, end, most)
    if not found:
        raise SettingsError(f"topic {topic} has no records at the moment")
    return found


def _read(consumer: Consumer, first: Places, end: Places, most: int) -> list[Record]:
    """Return up to `most` records, by partition and offset.

    Reads back from the end, in pieces, until there are enough records or no earlier offsets. If a piece has
    few records, the next one is larger.
    """
    found: dict[TopicPartition, list[Record]] = {place: [] for place in sorted(end)}
    begin, piece = dict(end), most
    while sum(map(len, found.values())) < most and (earlier := begins(first, begin, piece)) != begin:
        coming: dict[TopicPartition, list[Record]] = {place: [] for place in found}
        for one in records_up_to(consumer, earlier, begin):
            place = TopicPartition(one.topic, one.partition)
            if earlier[place] <= one.offset < begin[place]:
                coming[place].append(_record(one))
        found = {place: [*coming[place], *found[place]] for place in found}
        begin, piece = earlier, min(2 * piece, max(most, _MOST_OFFSETS))
    left_out = begins(
        dict.fromkeys(found, 0), {place: len(records) for place, records in found.items()}, most
    )
    return [record for place, records in found.items() for record in records[left_out[place] :]]


def begins(first: Mapping[Any, int], begin: Mapping[Any, int], missing: int) -> dict[Any, int]:
    """Return where to begin in each partition, in order to read `missing` offsets before `begin`.

    `first` contains the first offset of each partition. If some partitions have too few offsets, more are
    read from the others. If there are too few in all, every offset is read.
    """
    found, left = dict(begin), missing
    by_size = sorted(begin, key=lambda partition: begin[partition] - first[partition])
    for position, partition in enumerate(by_size):
        share = -(-left // (len(by_size) - position))
        taken = min(max(share, 0), begin[partition] - first[partition])
        found[partition] -= taken
        left -= taken
    return found


def _record(found: Any) -> Record:
    return Record(
        found.value,
        found.key,
        tuple(found.headers),
        found.partition,
        found.timestamp if found.timestamp >= 0 else None,
        found.offset,
        found.topic,
    )
