"""A large micro-batch's rows, sent in shards: tasks of one Spark job, each with connections of its own.

A shard's rows and its progress are one Kafka transaction, and Redis gets them after it. When every shard has
been sent the micro-batch's progress is committed as that of a small one is, so a micro-batch that a crash has
cut leaves out the shards that were done when it comes again. For that its rows have to come to the same
shards: their number is a constant, and so is the size from which a micro-batch is sent in shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import reduce

from pydantic import SecretStr
from pyspark.sql import DataFrame, Row

from lakehouse.errors import ServiceError
from lakehouse.sinks.change import Change
from lakehouse.sinks.kafka import KafkaSink
from lakehouse.sinks.redis import Put, RedisSink
from lakehouse.tables import Transaction

SHARDS = 4
SHARDED_FROM_ROWS = 50_000


@dataclass(frozen=True)
class Sent:
    """What became of a shard, or of all: rows, those sent to Kafka, those put in Redis; failure, if any."""

    rows: int = 0
    sent: int = 0
    put: Put = field(default_factory=Put)
    failure: str | None = None


@dataclass(frozen=True)
class ShardSender:
    """Sends the shards of one table's micro-batches; travels to the tasks. `topic` null: Redis only."""

    table: str
    bootstrap_servers: str
    topic: str | None
    redis_url: SecretStr
    redis_ttl_s: int
    generation: int
    rows_move: bool = False

    def send(self, shards: DataFrame, transaction: Transaction) -> Sent:
        """Send the partitions of the frame, each a shard, and return what came of them together.

        Raises ServiceError where one failed; the others may have been sent, which a second call finds out.
        """

        def send_shard(shard: int, rows: Iterable[Row]) -> Iterator[Sent]:
            yield self._send(shard, rows, transaction)

        done = shards.rdd.mapPartitionsWithIndex(send_shard).collect()
        for one in done:
            if one.failure is not None:
                raise ServiceError(one.failure)
        put = reduce(Put.__add__, (one.put for one in done), Put())
        return Sent(sum(one.rows for one in done), sum(one.sent for one in done), put)

    def _send(self, shard: int, rows: Iterable[Row], transaction: Transaction) -> Sent:
        # A failure is returned, because Spark would wrap it in the traces of three processes.
        changes = [Change(**row.asDict()) for row in rows]
        sent = 0
        try:
            with ExitStack() as sinks:
                if self.topic is not None:
                    kafka = KafkaSink(self.bootstrap_servers, self.topic, self.table, shard=shard)
                    sent = sinks.enter_context(closing(kafka)).write(changes, transaction)
                url = self.redis_url.get_secret_value()
                redis = RedisSink(
                    url, self.table, self.redis_ttl_s, generation=self.generation, rows_move=self.rows_move
                )
                put = sinks.enter_context(closing(redis)).write(changes)
        except ServiceError as error:
            return Sent(failure=str(error))
        return Sent(len(changes), sent, put)
