"""Read the firing alerts and the latest notifications from Kafka, for use in other processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakehouse.common.errors import ServiceError
from lakehouse.operations.alerts.beats import unwatched
from lakehouse.operations.alerts.evaluating import Alert
from lakehouse.operations.alerts.publishing import Beat, read_whole_state
from lakehouse.operations.alerts.rules import Rule
from lakehouse.operations.alerts.wording import message_in
from lakehouse.settings.alerts import state_topic
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Consumer, TopicPartition
from lakehouse.storage.kafka.offsets import ends_of, records_up_to
from lakehouse.storage.kafka.probe import require_listening
from lakehouse.storage.kafka.topics import describe_topic
from lakehouse.storage.spark.query_errors import what_of


@dataclass(frozen=True)
class Standing:
    """The firing alerts, oldest first, and the latest notifications, newest first.

    `beat` contains the time of the last evaluation. It is None if the rules have never been evaluated.
    """

    firing: tuple[Alert, ...] = ()
    told: tuple[Mapping[str, Any], ...] = ()
    beat: Beat | None = None

    def unwatched(self, now: datetime) -> str | None:
        """Return a warning if no process has evaluated the rules recently, or None otherwise."""
        return unwatched(self.beat, now)


def standing(access: KafkaAccess, topic: str, most: int) -> Standing:
    """Return the firing alerts, and the latest notifications, at most `most`.

    The result is empty if no alert process has run yet. Foreign records are skipped. Raises ServiceError if
    the topics cannot be read.
    """
    require_listening(access)
    try:
        with closing(Consumer(access, group_id=None, isolation_level="read_committed")) as consumer:
            topics = consumer.topics()
            if topic not in topics:
                describe_topic(access, topic)  # raises if the user may not see the topic
            told = _last(consumer, topic, most) if topic in topics else []
        is_there = state_topic(topic) in topics
        state, beat = read_whole_state(access, topic) if is_there else ({}, None)
    except Exception as error:  # the client raises many kinds of errors; callers show the reason
        raise ServiceError(f"alerts in topic {topic} could not be read: {what_of(error)}") from error
    firing = sorted((one for one in state.values() if one.fires), key=lambda one: (one.since, one.key))
    return Standing(tuple(firing), tuple(told), beat)


def threshold_of(rule: Rule) -> float | None:
    """Return a rule's threshold, or None if the rule has no threshold."""
    names = ("over", "under", "records", "seconds")
    return next((number for name in names if (number := getattr(rule, name, None)) is not None), None)


def _last(consumer: Consumer, topic: str, most: int) -> Sequence[Mapping[str, Any]]:
    partitions = [TopicPartition(topic, one) for one in consumer.partitions_for_topic(topic) or ()]
    consumer.assign(partitions)
    first, ends = ends_of(consumer, partitions)
    # Read twice as many offsets, because each transaction marker takes up one offset.
    begins = {one: max(first[one], ends[one] - 2 * most) for one in partitions}
    found = [message_in(record.value) for record in records_up_to(consumer, begins, ends)]
    told = [one for one in found if one is not None]
    return sorted(told, key=lambda one: str(one["at"]), reverse=True)[:most]
