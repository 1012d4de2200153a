"""Gold rows to send, and the span of table changes that they come from."""

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
    """A gold row to send: its message key, JSON (None if deleted), version, and place in Redis.

    `partition_by` determines the partition as a record key would; if it is None, `key` determines the
    partition. If `has_message` is false, the row is not sent to a topic. For sinks that do not store the
    message, `own` contains the row in the sink's format, keyed by sink name.
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
    """The span of changes in a micro-batch: the table's name as recorded in positions, the start, the end."""

    table: str
    before: Position
    after: Position

    @property
    def reached(self) -> Reached:
        """The end position in the form stored in a consumer group."""
        said = json.dumps({"table": self.table, "files": self.after.files})
        return Reached(self.after.version, said)


def next_chunk(remaining: Iterator[Change], rows: int) -> list[Change]:
    """Return the next rows: at most `rows` rows, or fewer if the rows are long."""
    chunk, characters = list[Change](), 0
    for change in remaining:
        chunk.append(change)
        characters += len(change.key) + len(change.value or "")
        if len(chunk) == rows or characters >= _CHUNK_CHARACTERS:
            break
    return chunk
