"""Where gold rows go: a Kafka topic, in transactions, and Redis, never back to an older version.

A change is a row's newest state in a micro-batch of gold's change feed. Both sinks take a micro-batch's
changes whole and may be given the same micro-batch again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import redis
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, ProducerFencedError
from kafka.partitioner import murmur2
from kafka.structs import OffsetAndMetadata, TopicPartition
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from lakehouse.errors import ServiceError
from lakehouse.tables import Transaction

_PUT = Path(__file__).with_name("redis_put.lua")
_PIPELINE_ROWS = 1_000
_REDIS_RETRIES = 8


@dataclass(frozen=True)
class Change:
    """A gold row as it leaves: Kafka key, JSON (null: deleted), version, and its places in Redis.

    Rows of one `partition_by` go to one partition, that of a record with this key; null: the key itself.
    """

    key: str
    value: str | None
    version: int
    row_key: str
    group: str
    member: str
    order: int
    partition_by: str | None = None


class KafkaSink:
    """Writes a micro-batch's rows to one topic exactly once.

    Rows and the micro-batch's number are committed in one Kafka transaction: the number as the offset that
    the consumer group `lakehouse-export-<table>-to-<topic>` has in partition 0 of the topic, with the query's
    identity as its metadata. A micro-batch that has been committed is not sent again. A second exporter of
    the same table to the same topic fences the first.
    """

    def __init__(self, bootstrap_servers: str, topic: str, table: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._table = table
        self._group = f"lakehouse-export-{table}-to-{topic}"
        self._progress = TopicPartition(topic, 0)
        self._producer: KafkaProducer | None = None
        self._sent: Transaction | None = None

    def write(self, changes: Sequence[Change], transaction: Transaction) -> int:
        """Send the changes in their order and return how many were sent; 0 where they had been sent before.

        Raises ServiceError where the broker refuses or another exporter has taken over.
        """
        try:
            return self._write(changes, transaction)
        except ProducerFencedError as error:
            self.close()
            raise ServiceError(
                f"export of {self._table} to topic {self._topic} was taken over by another exporter of the "
                "same table; only one may run at a time"
            ) from error
        except KafkaError as error:
            self.close()
            raise ServiceError(
                f"export to topic {self._topic} failed: {type(error).__name__}: {error}"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the producer, however the broker is.

        A transaction left open is invisible to read-committed consumers; it is aborted by the next exporter's
        start, or by the broker after a minute.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaError):
                producer.close(timeout=5)

    def _write(self, changes: Sequence[Change], transaction: Transaction) -> int:
        producer = self._connected()
        sent = self._sent
        if sent and sent.application == transaction.application and sent.version >= transaction.version:
            return 0
        partitions = sorted(producer.partitions_for(self._topic))
        producer.begin_transaction()
        for change in changes:
            value = None if change.value is None else change.value.encode()
            producer.send(
                self._topic,
                key=change.key.encode(),
                value=value,
                partition=_partition_of(change, partitions),
            )
        progress = OffsetAndMetadata(transaction.version, transaction.application, -1)
        producer.send_offsets_to_transaction({self._progress: progress}, self._group)
        producer.commit_transaction()
        self._sent = transaction
        return len(changes)

    def _connected(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = KafkaProducer(
                bootstrap_servers=self._bootstrap_servers,
                transactional_id=self._group,
                linger_ms=20,
                batch_size=128 * 1024,
            )
            # From here on nobody else can commit progress, so it is read once.
            self._producer.init_transactions()
            self._sent = self._committed()
        return self._producer

    def _committed(self) -> Transaction | None:
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap_servers, group_id=self._group, isolation_level="read_committed"
        )
        try:
            committed = consumer.committed(self._progress, metadata=True)
        finally:
            consumer.close()
        return None if committed is None else Transaction(str(committed.metadata), int(committed.offset))


class RedisSink:
    """Writes rows to Redis with a time to live; a row is replaced only by a newer version of itself.

    The layout is RedisView's. A write is one script call, sent in pipelines, so a reader never sees half of
    it. Redis being away is retried with a growing pause, `retries` times: by default for half a minute.
    """

    def __init__(self, url: str, table: str, ttl_s: int, *, retries: int = _REDIS_RETRIES) -> None:
        retry = Retry(ExponentialWithJitterBackoff(base=0.1, cap=10), retries)
        self._client = redis.Redis.from_url(
            url, retry=retry, retry_on_error=[redis.ConnectionError, redis.TimeoutError]
        )
        self._put = self._client.register_script(_PUT.read_text(encoding="utf-8"))
        self._table = table
        self._ttl_s = ttl_s

    def write(self, changes: Iterable[Change]) -> int:
        """Put the rows and return how many were new; older versions than what stands are left out.

        Raises ServiceError where Redis stays out of reach.
        """
        written = 0
        remaining = iter(changes)
        while chunk := list(islice(remaining, _PIPELINE_ROWS)):
            try:
                with self._client.pipeline(transaction=False) as pipeline:
                    for change in chunk:
                        self._put(keys=self._keys(change), args=self._arguments(change), client=pipeline)
                    written += sum(pipeline.execute())
            except redis.RedisError as error:
                raise ServiceError(
                    f"export to Redis failed: {error}; is LAKEHOUSE_REDIS_URL right?"
                ) from error
        return written

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _keys(self, change: Change) -> list[str]:
        latest = latest_key(self._table, change.group)
        return [row_key(self._table, change.row_key), latest, f"{latest}:stamps", f"{latest}:expiry"]

    def _arguments(self, change: Change) -> list[str | int]:
        return [change.version, _versioned(change), change.member, change.order, self._ttl_s]


def _partition_of(change: Change, partitions: Sequence[int]) -> int:
    """Return the partition that Kafka's default partitioner gives to a record with such a key."""
    text = change.key if change.partition_by is None else change.partition_by
    hashed: int = murmur2(text.encode()) & 0x7FFFFFFF
    return partitions[hashed % len(partitions)]


def row_key(table: str, row: str) -> str:
    """Return the Redis key of one gold row."""
    return f"lakehouse:{table}:row:{row}"


def latest_key(table: str, group: str) -> str:
    """Return the Redis key of the hash of a group's latest row per member."""
    return f"lakehouse:{table}:latest:{group}"


def _versioned(change: Change) -> str:
    """Return the row's JSON with its version as the last field, where the script looks for it."""
    row = change.value or '{"deleted":true}'
    return f'{row[:-1]},"version":{change.version}}}'
