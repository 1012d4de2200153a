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
    """A gold row to send: its message key, value (JSON, or None if deleted), version, and place in Redis.

    The partition is chosen by hashing `partition_by`, or `key` if it is None. If `has_message` is false, the
    row is not sent to a topic. `own` contains the row in the format of each sink that does not store the
    message, keyed by sink name.
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
    """A micro-batch's span of changes: the table's name as recorded in positions, the start, and the end."""

    table: str
    before: Position
    after: Position

    @property
    def reached(self) -> Reached:
        """The end position in the form stored in a consumer group."""
        said = json.dumps({"table": self.table, "files": self.after.files})
        return Reached(self.after.version, said)


def next_chunk(remaining: Iterator[Change], rows: int) -> list[Change]:
    """Return at most `rows` of the remaining rows, or fewer if they are long."""
    chunk, characters = list[Change](), 0
    for change in remaining:
        chunk.append(change)
        characters += len(change.key) + len(change.value or "")
        if len(chunk) == rows or characters >= _CHUNK_CHARACTERS:
            break
    return chunk
