"""A large micro-batch's rows, sent in shards: tasks of one Spark job, each with connections of its own.

A shard's rows are sent in slices, each together with the shard's progress in one Kafka transaction; then
Redis gets them. Once every shard has been sent, the micro-batch's progress is committed as for a small one.
If a crash interrupts a micro-batch, its retry skips the slices that were done. This requires that its rows
come to the same shards in the same order. They do: a micro-batch's plan in the checkpoint says what it reads
of the change feed, a row's shard follows from its key, its position from its version and its keys, and both
the number of shards and the size from which a micro-batch is sharded are constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from pydantic import SecretStr
from pyspark.sql import DataFrame, Row

from lakehouse.errors import ServiceError
from lakehouse.sinks.change import Change
from lakehouse.sinks.redis import Put, RedisSink
from lakehouse.sinks.sizes import TooLarge
from lakehouse.sinks.slices import Slice, SlicedSink, next_slice
from lakehouse.sinks.stopwatch import Stopwatch
from lakehouse.tables import Transaction
from lakehouse.topics import Limits

SHARDS = 4
SHARDED_FROM_ROWS = 50_000
SLICE_ROWS = 20_000


@dataclass(frozen=True)
class Sent:
    """What became of rows: their number, and those sent to Kafka, put in Redis, or too large for their topic.

    Seconds are summed over all shards, which run concurrently.
    """

    rows: int = 0
    sent: int = 0
    put: Put = field(default_factory=Put)
    refused: tuple[TooLarge, ...] = ()
    kafka_s: float = 0.0
    redis_s: float = 0.0

    def __add__(self, other: Sent) -> Sent:
        """Return the sum of both, for rows that share no member of a group."""
        return Sent(
            self.rows + other.rows,
            self.sent + other.sent,
            self.put + other.put,
            self.refused + other.refused,
            self.kafka_s + other.kafka_s,
            self.redis_s + other.redis_s,
        )


@dataclass(frozen=True)
class ShardSender:
    """Sends the shards of a table's micro-batches; serialized to the tasks. Null `topic`: Redis only."""

    table: str
    bootstrap_servers: str
    topic: str | None
    redis_url: SecretStr
    redis_ttl_s: int
    generation: int
    rows_move: bool
    slice_rows: int
    transaction_timeout_s: int

    def send(self, shards: DataFrame, transaction: Transaction, limits: Limits) -> Sent:
        """Send the partitions of the frame, each a shard, and return their combined result.

        `limits` are the topic's limits for producers. Raises ServiceError if a shard failed; the others, and
        slices of this one, may have been sent, which a second call detects.
        """

        def send_shard(shard: int, rows: Iterable[Row]) -> Iterator[Sent | str]:
            # A failure is returned, because Spark would wrap it in three processes' stack traces.
            try:
                yield self._send(shard, (Change(**row.asDict()) for row in rows), transaction, limits)
            except ServiceError as error:
                yield str(error)

        total = Sent()
        for done in shards.rdd.mapPartitionsWithIndex(send_shard).collect():
            if isinstance(done, str):
                raise ServiceError(done)
            total += done
        return total

    def _send(self, shard: int, changes: Iterator[Change], transaction: Transaction, limits: Limits) -> Sent:
        rows, sent, refused = 0, 0, list[TooLarge]()
        reading, sending, all_ = Stopwatch(), Stopwatch(), Stopwatch()

        changes = reading.over(changes)

        def gone(slices: Iterable[Slice]) -> Iterator[Change]:
            """Yield the rows that are done with Kafka; those of a slice once it is."""
            nonlocal rows, sent
            for one in slices:
                rows += len(one.changes)
                sent += one.sent
                refused.extend(one.refused)
                yield from one.changes

        with ExitStack() as sinks:
            url = self.redis_url.get_secret_value()
            redis = sinks.enter_context(
                closing(
                    RedisSink(
                        url,
                        self.table,
                        self.redis_ttl_s,
                        generation=self.generation,
                        rows_move=self.rows_move,
                    )
                )
            )
            if self.topic is None:
                parts = iter(lambda: next_slice(changes, self.slice_rows), [])
                slices: Iterator[Slice] = map(Slice, parts)
            else:
                kafka = SlicedSink(
                    self.bootstrap_servers,
                    self.topic,
                    self.table,
                    shard,
                    limits,
                    slice_rows=self.slice_rows,
                    transaction_timeout_s=self.transaction_timeout_s,
                )
                slices = sinks.enter_context(closing(kafka)).send(changes, transaction)
            with all_.running():
                put = redis.write(gone(sending.over(slices)))
        # Rows are read while others are sent, and sent while others are put.
        kafka_s = 0.0 if self.topic is None else sending.seconds - reading.seconds
        return Sent(rows, sent, put, tuple(refused), kafka_s, all_.seconds - sending.seconds)
