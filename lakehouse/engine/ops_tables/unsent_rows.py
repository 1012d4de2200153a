"""ops.unsent_rows: gold rows that a topic or store refused, recorded so that other rows need not wait.

Grain: one row per state of a gold row that could not be sent; key: table, topic (for a store without topics,
its name), row_key (the row's key in a cache), version (the Delta version with that state) and value_sha256
(the hex digest of the message's value, or empty for a delete). `key` is the message's key. `size_bytes` is
the size of a batch that contains only this message (for a store without topics, the key's size), and
`limit_bytes` is the limit for that size. Both are null if the size is not the reason. `reason` is
`too_large`, or `refused: ` with the store's message. `noted_at` is UTC. The gold table and the other stores
contain the row itself. The entry remains even if the row is sent later. An entry with the reason
`changes_removed` covers all changes, up to its version, that VACUUM removed before they were sent. It has no
key and no sizes. A rerun writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakehouse.storage import tables
from lakehouse.storage.tables import Lake, TableSpec, described

if TYPE_CHECKING:
    from lakehouse.sinks.change import UnsentRow

SCHEMA = described(
    ("table", "string", "The gold table, as layer.name."),
    ("topic", "string", "The topic or store that lacks the row."),
    ("row_key", "string", "The row's key; empty for a range of changes."),
    ("version", "long", "The table's version that contains the row, or the last version in the range."),
    ("value_sha256", "string", "The SHA-256 of the message's value; empty for a delete."),
    ("key", "string", "The message's key."),
    ("size_bytes", "long", "The message's size."),
    ("limit_bytes", "long", "The maximum size that the topic accepts."),
    (
        "reason",
        "string",
        'too_large, changes_removed (by VACUUM, before sending), or "refused: " and the store\'s message.',
    ),
    ("noted_at", "timestamp", "When the entry was recorded, UTC."),
)
UNSENT_ROWS = TableSpec(
    "ops",
    "unsent_rows",
    SCHEMA,
    stats=("table", "topic", "version", "noted_at"),
    comment="One row per gold row, or range of changes, that was not sent to its topic.",
)
_KEYS = ("table", "topic", "row_key", "version", "value_sha256")
_REMOVED = "changes_removed"


def note(lake: Lake, table: str, topic: str, rows: Sequence[UnsentRow], *, now: datetime) -> None:
    """Record the gold rows that a topic or a store refused, unless they are already recorded."""
    _note(lake, table, topic, [asdict(row) for row in rows], now)


def note_removed(lake: Lake, table: str, topic: str, version: int, *, now: datetime) -> None:
    """Record that changes up to a version were removed by VACUUM before they were sent."""
    row = {"row_key": "", "version": version, "value_sha256": "", "reason": _REMOVED}
    _note(lake, table, topic, [row], now)


def _note(lake: Lake, table: str, topic: str, rows: Sequence[dict[str, Any]], now: datetime) -> None:
    path = lake.ensure(UNSENT_ROWS)
    alike = {"table": table, "topic": topic, "noted_at": now}
    fields = [dict.fromkeys(SCHEMA.names) | row | alike for row in rows]
    frame = lake.spark.createDataFrame([tuple(one[name] for name in SCHEMA.names) for one in fields], SCHEMA)
    tables.insert_missing(frame, path, _KEYS, _of(table, topic))


def read(lake: Lake, table: str, topic: str) -> DataFrame | None:
    """Return the entries for a gold table and one topic or store, or None if there are no entries."""
    rows = lake.read_or_empty(UNSENT_ROWS).where(_of(table, topic))
    return None if rows.isEmpty() else rows


def are_removed(noted: DataFrame) -> bool:
    """Return whether the entries from `read` include changes that were removed before they were sent."""
    return not noted.where(F.col("reason") == _REMOVED).isEmpty()


def _of(table: str, topic: str) -> Column:
    return (F.col("table") == table) & (F.col("topic") == topic)
