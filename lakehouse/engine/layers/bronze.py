"""Bronze: Kafka records in Delta tables, byte for byte.

Grain of bronze.<table>: one row per Kafka record; key: topic, partition, offset. `timestamp` is the record's
Kafka timestamp (timestamp_type 0: set by the producer, 1: by the broker). `ingested_at` is the time when the
record's micro-batch was written. It increases with each commit: if the clock is not later than the greatest
`ingested_at` in the table, that value plus one microsecond is used. The commit also records `ingested_at` as
the transaction `bronze.<table> landed`, in microseconds since 1970. Times are UTC. If Kafka's timestamp is -1
(none) or outside the years 1900 to 9998, `timestamp` is null and `raw_timestamp` contains the number. A rerun
writes no record twice, because each commit also records the offsets at which its records end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache, partial
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from lakehouse.engine.layers.step import Batch, BatchResult, Blamed, Passed, Permitted, Step, StepMaker
from lakehouse.engine.layers.topic_reading import TopicReading, skipping
from lakehouse.engine.progress.reading import InMemory
from lakehouse.settings import Settings
from lakehouse.storage import tables
from lakehouse.storage.spark.columns import Columns
from lakehouse.storage.spark.execution import Amount, amount_of, by_reference, execute_for
from lakehouse.storage.spark.kafka_source import RECORDS
from lakehouse.storage.tables import HighWaterMark, Lake, Move, TableSpec, Written, shifted
from lakehouse.storage.tables.specs import EPOCH
from lakehouse.streams.definition import Source, Stream

SCHEMA = StructType(
    [*RECORDS.fields[:-1], StructField("ingested_at", TimestampType()), RECORDS["raw_timestamp"]]
)


def spec(source: Source) -> TableSpec:
    """Return the specification of a source's bronze table."""
    return TableSpec(
        "bronze",
        source.table,
        SCHEMA,
        stats=("partition", "offset", "timestamp", "ingested_at"),
        cluster_by="ingested_at",
    )


def steps(lake: Lake, stream: Stream, settings: Settings, permitted: Permitted) -> list[StepMaker]:
    """Return factories for the steps that fill the stream's bronze tables."""
    return [
        StepMaker(
            stream.name,
            "bronze",
            spec(source).qualified_name,
            partial(_Landing, lake, source, settings, permitted),
        )
        for source in stream.sources
    ]


def landing_of(name: str, landed: int | None, now: datetime) -> Move:
    """Return the move that records a landing time for bronze table `name`, in microseconds since the epoch.

    The time is `now` or, if that is not later than the last recorded landing time, one microsecond after it.
    `landed` is the last recorded landing time, or None if the table has none.
    """
    micros = (now - EPOCH) // timedelta(microseconds=1)
    return Move(f"{name} landed", landed, micros if landed is None else max(micros, landed + 1))


def to_bronze(records: DataFrame, ingested_at: datetime) -> DataFrame:
    """Return a topic's records as bronze rows with the given landing time (UTC)."""
    landed = by_reference(F.lit(ingested_at), F.col("partition"))
    return _columns().of(records.withColumn("ingested_at", landed))


@cache
def _columns() -> Columns:
    return Columns({name: F.col(name) for name in SCHEMA.names})


class _Landing(Step):
    """A step that appends micro-batches of records from a topic to the bronze table for that topic."""

    layer = "bronze"

    def __init__(self, lake: Lake, source: Source, settings: Settings, permitted: Permitted) -> None:
        self.name = self.fills = spec(source).qualified_name
        self._lake = lake
        self._table = source.table
        self._path = lake.ensure(spec(source))
        self._topic = TopicReading(
            lake,
            self.name,
            self._path,
            settings.topic(source.topic),
            access=settings.kafka.access,
            max_records=settings.run.max_records,
            max_bytes=settings.run.max_bytes,
            permitted=permitted,
            start=source.start,
        )
        self._files = settings.spark.shuffle_partitions

    def plan(self, handed: Mapping[str, InMemory]) -> Batch | None:  # noqa: ARG002 - it reads no table
        """Choose the next records from each partition, or return None if there are no unread records."""
        taken = self._topic.next(self.limit)
        if taken is None:
            return None
        return Batch(
            taken.rows,
            taken.records,
            taken.number,
            taken.moves,
            reads=taken.reads,
            size=taken.records,
            record=taken.record,
        )

    def blamed(self, batch: Batch) -> Blamed | None:
        """Return the micro-batch's only record, or None if it has several."""
        if batch.record is None:
            return None
        return Blamed(f"the record at {batch.record}", skipping(batch.record))

    @contextmanager
    def write(self, batch: Batch, now: datetime) -> Iterator[Passed]:
        """Append the records, and keep them in memory during the block."""
        landed, written = self._append(batch, now)
        try:
            rows = InMemory(landed, written.rows, cast("int", written.version))
            yield Passed(
                BatchResult(written.rows, {self._table: written.rows}), rows if self.passes_on else None
            )
        finally:
            landed.unpersist()

    def _append(self, batch: Batch, now: datetime) -> tuple[DataFrame, Written]:
        """Append the records.

        If Spark's source fails on a record, append only the records before it. If there are none, append only
        that record.
        """
        amount = amount_of(rows=batch.count or 0)
        execute_for(self._lake.spark, amount)
        # Otherwise, each micro-batch would write one small file per topic partition.
        records = batch.rows.coalesce(self._files if amount is Amount.MANY else 1)
        landing = self._landing(now)
        landed = to_bronze(records, tables.from_micros(landing.after or 0))
        if self.passes_on:
            landed.persist()
        try:
            return landed, tables.append(landed, self._path, (*batch.moves, landing))
        except Exception as error:
            landed.unpersist()
            if not self._topic.set_apart(error) or (again := self.plan({})) is None:
                raise
        return self._append(again, now)

    def _landing(self, now: datetime) -> Move:
        """Return the move that records the next landing time.

        The move makes the commit fail if another process has landed records in the meantime.

        If the table has no recorded landing time, another program may have written its rows, or an older
        version may have been restored. In that case, the greatest `ingested_at` in the table counts as the
        last landing time.
        """
        noted = tables.transactions(self._lake.spark, self._path).get(f"{self.name} landed")
        if noted is None:
            greatest = HighWaterMark(self._path, "ingested_at").value(self._lake.spark)
            if greatest is not None and greatest >= now:
                now = shifted(greatest, timedelta(microseconds=1))
        return landing_of(self.name, noted, now)

    def end_here(self, filled: Collection[str]) -> None:  # noqa: ARG002 - no step fills a topic
        """Read no records beyond the current end of the topic."""
        self._topic.end_here()

    def close(self) -> None:
        """Disconnect from the broker."""
        self._topic.close()
