"""Gold rows that are too large for a topic, kept so that the others need not wait: ops.unsent_rows.

Grain: one row per state of a gold row that could not be sent; key: table, topic, row_key (the row's key in
Redis), version (the Delta commit of that state) and value_sha256 (of the message's value, in hex; empty for a
delete). `key` is the Kafka record's key, `size_bytes` the record's size in a batch of its own, `limit_bytes`
the topic's limit, `reason` is `too_large`, `noted_at` is UTC. The row itself is in gold and in Redis. The
note stays if the row is sent later. A rerun writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse import tables
from lakehouse.tables import Lake, TableSpec

if TYPE_CHECKING:
    from lakehouse.sinks import TooLarge

SCHEMA = (
    StructType()
    .add("table", "string")
    .add("topic", "string")
    .add("row_key", "string")
    .add("version", "long")
    .add("value_sha256", "string")
    .add("key", "string")
    .add("size_bytes", "long")
    .add("limit_bytes", "long")
    .add("reason", "string")
    .add("noted_at", "timestamp")
)
UNSENT_ROWS = TableSpec("ops", "unsent_rows", SCHEMA, stats=("table", "topic", "version", "noted_at"))
_KEYS = ("table", "topic", "row_key", "version", "value_sha256")
_TOO_LARGE = "too_large"


def note(lake: Lake, table: str, topic: str, rows: Sequence[TooLarge], *, now: datetime) -> None:
    """Note rows of a gold table that are too large for its topic, except those already noted."""
    path = lake.ensure(UNSENT_ROWS)
    alike = {"table": table, "topic": topic, "reason": _TOO_LARGE, "noted_at": now}
    fields = [asdict(row) | alike for row in rows]
    frame = lake.spark.createDataFrame([tuple(one[name] for name in SCHEMA.names) for one in fields], SCHEMA)
    tables.insert_missing(frame, path, _KEYS, _of(table, topic))


def read(lake: Lake, table: str, topic: str) -> DataFrame | None:
    """Return what is noted of a gold table and a topic, null for nothing."""
    rows = lake.read_or_empty(UNSENT_ROWS).where(_of(table, topic))
    return None if rows.isEmpty() else rows


def _of(table: str, topic: str) -> Column:
    return (F.col("table") == table) & (F.col("topic") == topic)
