"""How Spark reads records from Kafka, streaming or in one batch: those of committed transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakehouse.settings import Settings


def read_new(spark: SparkSession, topics: Sequence[str], settings: Settings, *, since: str) -> DataFrame:
    """Return the stream of the topics' records from a position on: `earliest`, or in the form of a plan."""
    rows: DataFrame = (
        _of(spark.readStream, topics, settings)
        .option("startingOffsets", since)
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", settings.max_records_per_batch)
        .load()
    )
    return rows


def read_between(spark: SparkSession, topic: str, settings: Settings, *, first: str, end: str) -> DataFrame:
    """Return the topic's records between two positions in the form of a plan, the end excluded."""
    rows: DataFrame = (
        _of(spark.read, [topic], settings)
        .option("startingOffsets", first)
        .option("endingOffsets", end)
        .load()
    )
    return rows


def _of(reader: Any, topics: Sequence[str], settings: Settings) -> Any:
    options = {
        "kafka.bootstrap.servers": settings.kafka_bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        # A task reads only what is there. But its consumer prefetches and finds nothing more, and until the
        # broker has answered that, by default after 500 ms, it answers no other request of the consumer.
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.poll.records": "10000",
        "subscribe": ",".join(topics),
        "includeHeaders": "true",
    }
    return reader.format("kafka").options(**options)
