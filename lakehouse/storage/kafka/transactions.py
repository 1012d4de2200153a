"""Kafka transactions and their errors, for all exports to Kafka.

Transactions use librdkafka's client, which takes a fifth of kafka-python's CPU time per row, because
kafka-python creates a future for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from lakehouse.common.errors import ServiceError, StoreWord
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.clients import ErrorCode, KafkaException, Position, Producer, group_member
from lakehouse.storage.kafka.refusals import Wanted, denied, failure

_PATIENCE_S = 60.0
_BATCH_BYTES = 128 * 1024
_LEAST_BYTES, _MOST_BYTES = 1024 * 1024, 1_000_000_000  # request sizes; the second is librdkafka's limit
_FENCED = {ErrorCode._FENCED, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
_PURGED = {ErrorCode._PURGE_QUEUE, ErrorCode._PURGE_INFLIGHT}  # a consequence of the abort, never its cause
_NOTING = "commit offsets"  # in the error message if progress cannot be committed
_FULL_S = 0.1
_ANY = -1  # chosen by key, with the Java client's hash


class FencedError(ServiceError):
    """Another producer has taken over this producer's transactional id."""

    word = StoreWord.REFUSED


class Record(NamedTuple):
    """A record to send. If `partition` is None, the key (if any) determines the partition."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True)
class Reached:
    """A consumer group's progress in partition 0 of a topic: an offset and its metadata."""

    offset: int
    note: str


class Transactions:
    """A transactional producer. Each call commits all of its records, or none of them becomes visible.

    A new instance fences every earlier producer with the same name, and aborts that producer's open
    transaction. The broker aborts a transaction that stays open for longer than `timeout_s`. Raises
    KafkaException if the broker refuses a request or does not answer within `patience_s`. The producer must
    then be closed.
    """

    def __init__(
        self,
        access: KafkaAccess,
        name: str,
        *,
        timeout_s: float,
        patience_s: float = _PATIENCE_S,
        record_bytes: int = _LEAST_BYTES,
    ) -> None:
        self._access = access
        self._patience_s = patience_s
        self._refused = list[tuple[ErrorCode, str]]()
        self._fatal: ErrorCode | None = None
        self._name = name
        self._member: object = None
        self._producer = Producer(
            access,
            {
                "transactional.id": name,
                "transaction.timeout.ms": round(1000 * timeout_s),
                "message.timeout.ms": round(1000 * min(timeout_s, patience_s)),
                "linger.ms": 20,
                "partitioner": "murmur2",
                # A batch of several records never exceeds the topic's limit. A record larger than a batch
                # gets its own batch.
                "batch.size": min(_BATCH_BYTES, record_bytes),
                "message.max.bytes": min(max(_LEAST_BYTES, record_bytes), _MOST_BYTES),
                "delivery.report.only.error": True,
                "on_delivery": lambda error, one: self._refused.append((error, one.topic())),
                "error_cb": self._note,
                "log_level": 0,  # the raised errors are enough
            },
        )
        try:
            self._producer.init_transactions(patience_s)
        except KafkaException as error:
            self.close()
            raise failure(access, error, self._rights("", is_noting=False)) from error
        except BaseException:
            self.close()
            raise

    def partitions(self, topic: str) -> list[int]:
        """Return a topic's partition numbers."""
        found = self._producer.list_topics(topic, self._patience_s).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return sorted(found.partitions)

    def commit(self, records: Iterable[Record], progress: tuple[str, Reached] | None = None) -> None:
        """Send records in order, in one transaction with `progress` (a topic and an offset), if given."""
        self._refused.clear()
        topics = dict[str, None]()
        try:
            self._producer.begin_transaction()
            for record in records:
                topics[record.topic] = None
                self._send(record)
            if progress is not None:
                topic, reached = progress
                position = Position(topic, 0, reached.offset, reached.note)
                self._producer.send_offsets_to_transaction([position], self._as_member(), self._patience_s)
            self._producer.commit_transaction(self._patience_s)
        except KafkaException as error:
            cause, refusing = self._cause_of(error.args[0])
            noted = progress[0] if progress is not None and _NOTING in cause.str() else None
            wanted = self._rights(refusing or noted or " or ".join(topics), is_noting=noted is not None)
            no = denied(self._access, KafkaException(cause), wanted)
            raise no or KafkaException(cause) from error

    def close(self) -> None:
        """Close the producer, even if the broker is down. An open transaction is not aborted."""
        self._producer.purge(blocking=False)
        del self._producer

    def _rights(self, topic: str, *, is_noting: bool) -> Wanted:
        """Return the permissions required to commit progress (`is_noting`) or to send records to a topic."""
        return {
            "topic": f"{'Read' if is_noting else 'Write to'} topic {topic}",
            "group": f"Read group {self._name}",
            "transactional id": f"Write to transactional id {self._name}",
            "cluster": "IdempotentWrite to the cluster",
        }

    def _cause_of(self, error: ErrorCode) -> tuple[ErrorCode, str | None]:
        """Return the error that ended a transaction and, if a topic refused a record, the topic's name."""
        if self._fatal is None and not error.fatal():
            self._producer.poll(0)  # reports refused records
        if self._fatal is not None:
            return self._fatal, None
        if error.code() == ErrorCode._STATE:  # the transaction failed earlier; only the next call reports why
            try:
                self._producer.commit_transaction(self._patience_s)
            except KafkaException as first:
                error = first.args[0]
        refused = (one for one in self._refused if one[0].code() not in _PURGED)
        return next(refused, (error, None))

    def _note(self, error: ErrorCode) -> None:
        """Remember the first fatal error. Ignore transient errors, because calls eventually time out."""
        if error.fatal() and self._fatal is None:
            self._fatal = error

    def _send(self, record: Record) -> None:
        partition = _ANY if record.partition is None else record.partition
        while True:
            try:
                self._producer.produce(
                    record.topic, record.value, record.key, partition, headers=list(record.headers)
                )
            except BufferError:
                self._producer.poll(_FULL_S)
            else:
                return

    def _as_member(self) -> object:
        """Return the metadata with which a producer commits offsets for the group, which has no members."""
        if self._member is None:
            self._member = group_member(self._access, self._name)
        return self._member


@contextmanager
def reported(what: str, close: Callable[[], None], fenced: str) -> Iterator[None]:
    """Close the producer if the block fails, and translate librdkafka's exceptions.

    Raises FencedError with the message `fenced` if another producer has taken over, and ServiceError for
    other broker failures.
    """
    try:
        yield
    except KafkaException as error:
        close()
        failure: ErrorCode = error.args[0]
        if failure.code() in _FENCED:
            raise FencedError(fenced) from error
        # The broker's answers have positive codes, and librdkafka's own are negative.
        word = StoreWord.REFUSED if failure.code() > 0 else StoreWord.AWAY
        raise ServiceError(f"{what} failed: {failure.name()}: {failure.str()}", word) from error
    except BaseException:
        close()
        raise
