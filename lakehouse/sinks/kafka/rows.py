"""Export gold rows to a Kafka topic, exactly once for read-committed consumers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

from lakehouse.common.errors import PositionError
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.sinks.change import TOO_LARGE, Change, Span, UnsentRow
from lakehouse.storage.kafka.clients import Consumer, TopicPartition
from lakehouse.storage.kafka.internals import hashed, record_bytes
from lakehouse.storage.kafka.refusals import asking
from lakehouse.storage.kafka.topics import Limits, limits_of
from lakehouse.storage.kafka.transactions import Reached, Record, Transactions, reported
from lakehouse.storage.tables import Position, Progress

TRANSACTION_TIMEOUT_S = 600
_END = "\0"  # librdkafka sends the metadata with its terminating NUL
_OVERHEAD = 128  # upper bound, in bytes, for a record and its batch without key and value
_LONGEST_CHARACTER = 4


@dataclass(frozen=True)
class Weighed:
    """The changes small enough for the topic, in order, and the rows that the topic refuses."""

    fitting: list[Change]
    refused: tuple[UnsentRow, ...]


def weigh(changes: Iterable[Change], limit_bytes: int) -> Weighed:
    """Split the changes that have a message into those within the topic's size limit and those above it."""
    fitting, refused = [], []
    for change in [change for change in changes if change.has_message]:
        found = _too_large(change, limit_bytes)
        if found is None:
            fitting.append(change)
        else:
            refused.append(found)
    return Weighed(fitting, tuple(refused))


def _too_large(change: Change, limit_bytes: int) -> UnsentRow | None:
    characters = len(change.key) + len(change.value or "")
    if _LONGEST_CHARACTER * characters + _OVERHEAD <= limit_bytes:
        return None
    size = record_bytes(change.key.encode(), None if change.value is None else change.value.encode())
    return None if size <= limit_bytes else UnsentRow.of(change, TOO_LARGE, size, limit_bytes)


class Exporter:
    """The base class for exporting a table to a topic in Kafka transactions.

    Rows and progress are committed in the same transaction. The progress is the consumer group's offset and
    metadata for the topic's partition 0. The group's name is also the transactional id, so a second exporter
    with the same group fences the first. The broker aborts a transaction that stays open longer than
    `transaction_timeout_s` or the broker's own limit. Read-committed consumers never see the messages of an
    aborted transaction.
    """

    def __init__(
        self, access: KafkaAccess, topic: str, table: str, group: str, transaction_timeout_s: int
    ) -> None:
        self._access = access
        self.topic = topic
        self._table = table
        self._group = group
        self._timeout_s = transaction_timeout_s
        self._producer: Transactions | None = None

    def close(self) -> None:
        """Close the producer, even if the broker is down.

        Read-committed consumers do not see the rows of an open transaction, and wait at the first of these
        rows. The next exporter aborts the transaction when it starts; otherwise the broker aborts it after
        the timeout.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _reported(self) -> AbstractContextManager[None]:
        return reported(
            f"export to topic {self.topic}",
            self.close,
            f"export of {self._table} to topic {self.topic} was taken over by another exporter of the same "
            "table (only one may run at a time), or its transaction was open for more than "
            f"{self._timeout_s:,} s",
        )

    def _start(self, limits: Limits) -> Transactions:
        """Create the producer. From then on, no earlier exporter can commit progress."""
        self._producer = producer = Transactions(
            self._access,
            self._group,
            timeout_s=min(self._timeout_s, limits.transaction_ms / 1000),
            record_bytes=limits.record_bytes,
        )
        return producer

    def _commit(self, producer: Transactions, changes: Sequence[Change], reached: Reached) -> None:
        """Send the changes in order and commit them together with the progress."""
        partitions = list[int]()

        def records() -> Iterator[Record]:
            for change in changes:
                is_of_key = change.partition_by in {None, change.key}
                if not is_of_key and not partitions:
                    partitions.extend(producer.partitions(self.topic))
                yield Record(
                    self.topic,
                    change.key.encode(),
                    None if change.value is None else change.value.encode(),
                    None if is_of_key else partition_of(change, partitions),
                )

        producer.commit(records(), (self.topic, reached))


class KafkaSink(Exporter):
    """An exporter that writes each micro-batch to one topic exactly once, in one transaction.

    The progress is the table's next version to send. It is stored as the offset of the group
    `lakehouse-export-<table>-to-<topic>`, whose metadata contains the table's name as recorded in positions
    (`tables.sent_as`). A committed micro-batch is not sent again.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        table: str,
        *,
        transaction_timeout_s: int = TRANSACTION_TIMEOUT_S,
    ) -> None:
        group = progress_group(table, topic)
        super().__init__(access, topic, table, group, transaction_timeout_s)
        self._limits = Limits()
        self._sent: Progress | None = None

    def weigh(self, changes: Sequence[Change]) -> Weighed:
        """Split the changes by whether the topic accepts them. Look up the limit again before refusing any.

        Raises ServiceError like `write`.
        """
        with self._reported():
            self._connected()
            weighed = weigh(changes, self._limits.record_bytes)
            if weighed.refused and self._look_again():
                weighed = weigh(changes, self._limits.record_bytes)
        return weighed

    def write(self, changes: Sequence[Change], span: Span) -> int:
        """Send the changes in order, and return how many were sent (0 if they had been sent before).

        Raises ServiceError if the broker refuses the changes or another exporter has taken over, and
        PositionError if another exporter has sent different changes in the meantime.
        """
        with self._reported():
            return self._write(changes, span)

    def take_over(self) -> Limits:
        """Fence every earlier exporter, and return the topic's current limits for producers.

        Raises ServiceError like `write`.
        """
        with self._reported():
            self._connected()
            self._look_again()
        return self._limits

    def sent(self) -> Progress | None:
        """Return the position up to which rows have been sent to the topic, or None if none have been sent.

        Raises ServiceError if the broker does not answer.
        """
        # A read-committed request would wait for a transaction left open by a crash, although that
        # transaction has not changed the progress.
        return read_progress(self._access, self._group, self.topic, "read_uncommitted")

    def _write(self, changes: Sequence[Change], span: Span) -> int:
        producer = self._connected()
        sent = self._sent
        if sent is not None and sent.table == span.table:
            if not sent.position.is_before(span.after):
                return 0
            if span.before.is_before(sent.position):
                raise PositionError(
                    f"topic {self.topic} has rows of {self._table} up to version {sent.position}, but this "
                    f"export continues at {span.before}: another export has sent them. Stop one of the "
                    "two exports"
                )
        self._commit(producer, changes, span.reached)
        self._sent = Progress(span.table, span.after)
        return len(changes)

    def _connected(self) -> Transactions:
        producer = self._producer
        if producer is None:
            self._limits = limits_of(self._access, self.topic)
            producer = self._start(self._limits)
            self._sent = read_progress(self._access, self._group, self.topic)
        return producer

    def _look_again(self) -> bool:
        """Look up the topic's limits again. If they have changed, replace the producer and return true."""
        before = self._limits
        if limits_of(self._access, self.topic) == before:
            return False
        self.close()
        self._connected()
        return True


def progress_group(table: str, topic: str) -> str:
    """Return the consumer group that stores the progress of a table's export to a topic."""
    return f"lakehouse-export-{table}-to-{topic}"


def read_progress(
    access: KafkaAccess, group: str, topic: str, isolation_level: str = "read_committed"
) -> Progress | None:
    """Return the position up to which a table has been sent to the topic, or None if nothing has been sent.

    Raises ServiceError like `read_group`.
    """
    committed = read_group(access, group, topic, isolation_level)
    if committed is None:
        return None
    said = json.loads(committed.note)
    return Progress(str(said["table"]), Position(committed.offset, said["files"]))


def read_group(
    access: KafkaAccess, group: str, topic: str, isolation_level: str = "read_committed"
) -> Reached | None:
    """Return the progress that an exporter's group has committed for the topic, or None if there is none.

    Raises ServiceError if the broker does not answer, or denies the request.
    """
    with (
        asking(access, {"group": f"Read group {group}", "topic": f"Read topic {topic}"}),
        closing(Consumer(access, group_id=group, isolation_level=isolation_level)) as consumer,
    ):
        found = consumer.committed(TopicPartition(topic, 0), metadata=True)
    return None if found is None else Reached(int(found.offset), found.metadata.rstrip(_END))


def partition_of(change: Change, partitions: Sequence[int]) -> int:
    """Return the partition that Kafka's default partitioner would choose for the change's partition key."""
    text = change.key if change.partition_by is None else change.partition_by
    return partitions[hashed(text.encode()) % len(partitions)]
