"""Read topics' end offsets and the times of the first unread records, over persistent connections.

A record's time is the time of its batch. Read-committed consumers stop before the first record in an open
transaction. They therefore miss later records from other producers. This module also finds transactions that
hide records in this way.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lakehouse.common.errors import ServiceError
from lakehouse.operations.telemetry.delta_log import from_ms
from lakehouse.operations.telemetry.values import OpenTransaction
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import Admin, KafkaError, OffsetSpec, TopicPartition
from lakehouse.storage.kafka.internals import HeaderConsumer
from lakehouse.storage.kafka.offsets import ends_of
from lakehouse.storage.kafka.probe import require_listening, why_not
from lakehouse.storage.kafka.refusals import denied
from lakehouse.storage.spark.query_errors import what_of
from lakehouse.storage.tables.specs import EPOCH


def open_transactions(
    admin: Admin, stable: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OpenTransaction]:
    """Return the oldest open transaction of each partition whose last stable offset is before its end.

    Raises KafkaError if the broker cannot describe producers, which requires Kafka 2.8.
    """
    written = admin.list_partition_offsets(dict.fromkeys(stable, OffsetSpec.LATEST))
    hidden = {one: written[one].offset - end for one, end in stable.items() if written[one].offset > end}
    found = {}
    for partition, state in admin.describe_producers(hidden).items():
        writing = [one for one in state.active_producers if one.current_transaction_start_offset >= 0]
        if writing:  # otherwise the transaction has since ended
            first = min(writing, key=lambda one: one.current_transaction_start_offset)
            name, since_ms = _described(admin, first.producer_id) or (
                f"id {first.producer_id}",
                first.last_timestamp,
            )
            since = from_ms(since_ms) or EPOCH  # a producer's timestamp can be out of range
            found[partition] = OpenTransaction(hidden[partition], name, since)
    return found


def _described(admin: Admin, producer_id: int) -> tuple[str, int] | None:
    """Return a producer's transactional id and its transaction's start in ms, or None if unavailable."""
    try:
        listed = admin.list_transactions(producer_id_filters=[producer_id])
        names = [one.transactional_id for of_broker in listed.values() for one in of_broker]
        for name, told in admin.describe_transactions(names).items():
            if told.transaction_start_time_ms >= 0:
                return str(name), int(told.transaction_start_time_ms)
    except KafkaError:
        pass
    return None


_REQUEST_MS = 2_000
_LOOK_S = 2.0

Coordinate = tuple[str, int]


@dataclass(frozen=True)
class Ends:
    """A partition's first existing offset, and the offset after its last committed record.

    `open_transaction` is the transaction that hides later records, or None if no transaction is open.
    """

    first: int
    end: int
    open_transaction: OpenTransaction | None = None


class Broker:
    """A client for topic metadata. Not thread-safe."""

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self.denied: Mapping[str, str] = {}
        self._consumer: HeaderConsumer | None = None
        self._admin: Admin | None = None
        self._times: dict[tuple[str, int, int], int] = {}

    def ends(self, topics: Collection[str]) -> dict[str, dict[int, Ends]]:
        """Return the ends of every partition in the existing topics, keyed by topic and partition.

        Afterwards, `denied` contains the topics that the user may not describe, with reasons. Raises
        ServiceError with the reason if no broker answers within a few seconds.
        """
        try:
            consumer = self._connected()
            found = {topic: consumer.partitions_for_topic(topic) or set() for topic in topics}
            self.denied = self._denied([topic for topic, numbers in found.items() if not numbers])
            partitions = [TopicPartition(topic, one) for topic, numbers in found.items() for one in numbers]
            first, end = ends_of(consumer, partitions)
            held = self._held(end)
        except (KafkaError, OSError) as error:
            self.close()
            why = why_not(self._access, _REQUEST_MS / 1000) or what_of(error)
            raise ServiceError(f"the broker at {self._access} does not answer: {why}") from error
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
        """Return the timestamp in ms of the record batch at each offset.

        The batch contains the first record at or after the offset. Offsets without a known timestamp are
        omitted. Timestamps are cached.
        """
        wanted = {(*place, offset) for place, offset in offsets.items()}
        self._times = {place: ms for place, ms in self._times.items() if place in wanted}
        try:
            self._look_up([one for one in wanted if one not in self._times])
        except Exception:  # noqa: BLE001 - the number of unread records is known even without times
            self.close()
        known = ((place, self._times.get((*place, offset))) for place, offset in offsets.items())
        return {place: ms for place, ms in known if ms is not None}

    def close(self) -> None:
        """Disconnect, even if the broker is down."""
        for client in (self._consumer, self._admin):
            if client is not None:
                with suppress(Exception):
                    client.close()
        self._consumer = self._admin = None

    def _denied(self, missing: Collection[str]) -> dict[str, str]:
        """Return why the user cannot see topics: those without Describe permission, keyed by topic."""
        if not missing:
            return {}
        reasons = {
            str(one["name"]): denied(
                self._access, int(one["error_code"]), {"topic": f"Describe topic {one['name']}"}
            )
            for one in self._administering().describe_topics(list(missing))
        }
        return {topic: str(reason) for topic, reason in reasons.items() if reason is not None}

    def _administering(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._access, _REQUEST_MS / 1000)
        return self._admin

    def _held(self, end: Mapping[TopicPartition, int]) -> dict[TopicPartition, OpenTransaction]:
        """Return the open transactions at the last stable offsets, or {} if the broker cannot list them."""
        try:
            return open_transactions(self._administering(), end)
        except KafkaError:
            return {}

    def _look_up(self, missing: Collection[tuple[str, int, int]]) -> None:
        if not missing:
            return
        consumer, deadline = self._connected(), time.monotonic() + _LOOK_S
        for topic, number, offset in missing:
            if time.monotonic() > deadline:
                return
            if (ms := consumer.batch_ms(topic, number, offset)) is not None:
                self._times[topic, number, offset] = ms

    def _connected(self) -> HeaderConsumer:
        # If the broker is down, the client retries until its request times out. A port check fails fast.
        require_listening(self._access, timeout_s=0.5)
        if self._consumer is None:
            self._consumer = HeaderConsumer(
                self._access,
                group_id=None,
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                metadata_max_age_ms=10_000,
                request_timeout_ms=_REQUEST_MS,
                bootstrap_timeout_ms=_REQUEST_MS,
            )
        return self._consumer
