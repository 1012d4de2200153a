"""The dead letters of every stream: one table, one row for a record that a stage refused.

Grain: one row per record and stage; key: `id`, the SHA-256 of topic, partition, offset and stage. The raw
key, value and headers are the bytes that came. Times are UTC. A rerun of the micro-batch that wrote a row
writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.judging import HEADERS, REASONS
from lakehouse.tables import TableSpec

SCHEMA = (
    StructType()
    .add("id", "string")
    .add("stream", "string")
    .add("stage", "string")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("kafka_timestamp", "timestamp")
    .add("key", "binary")
    .add("value", "binary")
    .add("headers", HEADERS)
    .add("reasons", REASONS)
    .add("status", "string")
    .add("attempts", "integer")
    .add("first_seen", "timestamp")
    .add("last_attempt", "timestamp")
    .add("job", "string")
    .add("batch", "long")
    .add("code_version", "string")
)

DEAD_LETTERS = TableSpec(
    "silver", "dead_letters", SCHEMA, stats=("stream", "partition", "offset", "first_seen")
)


@dataclass(frozen=True)
class Origin:
    """Who found the dead letters: stream, stage, job, micro-batch, code version, and when (UTC)."""

    stream: str
    stage: str
    job: str
    batch: int
    code_version: str
    now: datetime


def to_dead_letters(dead: DataFrame, origin: Origin) -> DataFrame:
    """Return refused records as rows of the dead-letter table, open, after one attempt."""
    identity = F.concat_ws(
        "\n", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"), F.lit(origin.stage)
    )
    now = F.lit(origin.now)
    return dead.withColumns(
        {
            "id": F.sha2(identity, 256),
            "stream": F.lit(origin.stream),
            "stage": F.lit(origin.stage),
            "status": F.lit("open"),
            "attempts": F.lit(1),
            "first_seen": now,
            "last_attempt": now,
            "job": F.lit(origin.job),
            "batch": F.lit(origin.batch).cast("long"),
            "code_version": F.lit(origin.code_version),
        }
    ).select(*SCHEMA.names)
