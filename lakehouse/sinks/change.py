"""Types for gold rows to send, the span of table changes they come from, and rows that a store refuses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.storage.kafka.transactions import Reached
from lakehouse.storage.tables import Position

TOO_LARGE, REFUSED = "too_large", "refused"
"""Reasons for not sending a row. REFUSED is a prefix; the store's message follows."""

_CHUNK_CHARACTERS = 32 << 20


@dataclass(frozen=True)
class Change:
    """A gold row to send: its message key, value (JSON, or None if deleted), version, and keys in Redis.

    The partition is chosen by hashing `partition_by`, or `key` if it is None. If `has_message` is false, the
    row is not sent to a topic. `own` contains, keyed by sink name, the row in the format of each sink that
    does not store the message.
    """

    key: str
    value: str | None
    version: int
    row_key: str
    group: str
    member: str
    order: int
    partition_by: str | None = None
    has_message: bool = True
    own: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class UnsentRow:
    """A state of a row that a topic or store refused: the row, the reason, and the size and limit in bytes.

    For a topic, `size_bytes` is the client's estimate for a batch with only this record: key and value in
    UTF-8, plus up to 95 bytes. The estimate exceeds the size that the broker measures by at most 20 bytes.
    `size_bytes` is None if the size is not the reason. `value_sha256` is the hex digest of the message's
    value, or empty for a delete.
    """

    key: str
    row_key: str
    version: int
    value_sha256: str
    reason: str
    size_bytes: int | None = None
    limit_bytes: int | None = None

    @classmethod
    def of(
        cls, change: Change, reason: str, size_bytes: int | None = None, limit_bytes: int | None = None
    ) -> UnsentRow:
        """Return the UnsentRow for a change that was refused for this reason."""
        digest = "" if change.value is None else hashlib.sha256(change.value.encode()).hexdigest()
        return cls(change.key, change.row_key, change.version, digest, reason, size_bytes, limit_bytes)


@dataclass(frozen=True)
class Span:
    """The table changes in a micro-batch: the table's name in recorded positions, the start, and the end."""

    table: str
    before: Position
    after: Position

    @property
    def reached(self) -> Reached:
        """The end position, as the offset and metadata that a consumer group stores."""
        said = json.dumps({"table": self.table, "files": self.after.files})
        return Reached(self.after.version, said)


def next_chunk(remaining: Iterator[Change], rows: int) -> list[Change]:
    """Return the next rows: at most `rows` of them, and fewer if they are long."""
    chunk, characters = list[Change](), 0
    for change in remaining:
        chunk.append(change)
        characters += len(change.key) + len(change.value or "")
        if len(chunk) == rows or characters >= _CHUNK_CHARACTERS:
            break
    return chunk
