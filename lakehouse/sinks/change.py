"""Gold rows to send, and the span of the table's changes that they come from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.storage.kafka.transactions import Reached
from lakehouse.storage.tables import Position

_CHUNK_CHARACTERS = 32 << 20


@dataclass(frozen=True)
class Change:
    """A gold row to send: message key, JSON (None: deleted), version, and its place in Redis.

    `partition_by` determines the partition, as if it were the record's key; if it is None, `key` does. If
    `has_message` is false, the row is not sent to a topic. `own` maps a sink's name to the row in that sink's
    own format, for sinks that do not store the message.
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
class Span:
    """The changes that a micro-batch sends: the table's name in positions, and their start and end."""

    table: str
    before: Position
    after: Position

    @property
    def reached(self) -> Reached:
        """The end position, as stored in a consumer group."""
        said = json.dumps({"table": self.table, "files": self.after.files})
        return Reached(self.after.version, said)


def next_chunk(remaining: Iterator[Change], rows: int) -> list[Change]:
    """Take the next rows: at most `rows` of them, and fewer if they are long."""
    chunk, characters = list[Change](), 0
    for change in remaining:
        chunk.append(change)
        characters += len(change.key) + len(change.value or "")
        if len(chunk) == rows or characters >= _CHUNK_CHARACTERS:
            break
    return chunk
