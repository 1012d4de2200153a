"""A gold row to be sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """A gold row as it is sent: Kafka key, JSON (null: deleted), version, and its places in Redis.

    Rows of the same `partition_by` go to one partition, that of a record with this key; null: of the key
    itself.
    """

    key: str
    value: str | None
    version: int
    row_key: str
    group: str
    member: str
    order: int
    partition_by: str | None = None
