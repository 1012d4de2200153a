"""Bronze: Kafka records into Delta tables, byte for byte.

Grain of bronze.<table>: one row per Kafka record; key: topic, partition, offset. `timestamp` is the
record's own (timestamp_type 0: set by the producer, 1: by the broker), `ingested_at` the time its
micro-batch was planned, which a retry does not change. Times are UTC. A rerun writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache, partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import tables
from lakehouse.layers.query import BatchResult, LayerQuery, Passed, QueryMaker
from lakehouse.progress import checkpoints
from lakehouse.records.kafka_source import read_new
from lakehouse.records.validation import HEADERS
from lakehouse.settings import Settings
from lakehouse.spark.columns import Columns
from lakehouse.spark.execution import are_few, by_reference, execute_for
from lakehouse.stream import Source, Stream
from lakehouse.tables import Lake, TableSpec, Transaction

SCHEMA = (
    StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add("headers", HEADERS)
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestamp_type", "integer")
    .add("ingested_at", "timestamp")
)


def spec(source: Source) -> TableSpec:
    """Return the bronze table of a source."""
    return TableSpec(
        "bronze",
        source.table,
        SCHEMA,
        stats=("partition", "offset", "timestamp", "ingested_at"),
        cluster_by="ingested_at",
    )


def queries(lake: Lake, stream: Stream, settings: Settings) -> list[QueryMaker]:
    """Return what makes the queries that fill the stream's bronze tables."""
    return [
        QueryMaker(stream.name, spec(source).qualified_name, partial(_query, lake, source, settings))
        for source in stream.sources
    ]


def to_bronze(records: DataFrame, ingested_at: datetime) -> DataFrame:
    """Return rows of the Kafka source as bronze rows that landed at a time, UTC."""
    landed = by_reference(F.lit(ingested_at), F.col("partition"))
    return _columns().of(records.withColumn("ingested_at", landed))


@cache
def _columns() -> Columns:
    return Columns({name: F.col(name) for name in SCHEMA.names} | {"timestamp_type": F.col("timestampType")})


def _query(lake: Lake, source: Source, settings: Settings) -> LayerQuery:
    path, topic = lake.ensure(spec(source)), settings.topic(source.topic)
    landing = _Landing(lake, source, path, settings)
    return LayerQuery(
        "bronze",
        landing.name,
        lambda: read_new(lake.spark, [topic], settings, since="earliest"),
        landing.process_batch,
        target=path,
        tables={landing.name: path},
        topic=topic,
        pass_on=landing.pass_on,
    )


class _Landing:
    """Lands micro-batches of a topic's records in its bronze table."""

    def __init__(self, lake: Lake, source: Source, path: str, settings: Settings) -> None:
        self.name = f"bronze.{source.table}"
        self._spark = lake.spark
        self._table = source.table
        self._path = path
        self._tasks = settings.shuffle_partitions
        self._checkpoint = lake.checkpoint(self.name)

    def process_batch(
        self, batch: DataFrame, transaction: Transaction, _now: datetime, _count: int | None = None
    ) -> BatchResult:
        """Append the records; a second call with the same transaction appends nothing."""
        return self._land(batch, transaction).result

    @contextmanager
    def pass_on(
        self, batch: DataFrame, transaction: Transaction, _now: datetime, _count: int | None = None
    ) -> Iterator[Passed]:
        """Do the same, and pass on the landed rows: a frame over the batch, which the caller keeps."""
        yield self._land(batch, transaction)

    def _land(self, batch: DataFrame, transaction: Transaction) -> Passed:
        plan = checkpoints.read_kafka_plan(self._spark, self._checkpoint, transaction.version)
        few = are_few(rows=plan.records)
        execute_for(batch.sparkSession, few=few)
        # One file per partition of the topic would be many small files in each micro-batch.
        landed = to_bronze(batch.coalesce(1 if few else self._tasks), plan.planned_at)
        rows = tables.append(landed, self._path, transaction)
        return Passed(BatchResult(rows, {self._table: rows}), landed, rows, transaction)
