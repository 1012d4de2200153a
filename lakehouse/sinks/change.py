"""Gold rows to be sent, and which part of a table's changes they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.kafka.transactions import Reached
from lakehouse.tables import Position

_CHUNK_CHARACTERS = 32 << 20


@dataclass(frozen=True)
class Change:
    """A gold row as it is sent: the message's key, JSON (null: deleted), version, and its place in a cache.

    Rows of the same `partition_by` go to one partition, that of a record with this key; null: of the key
    itself. One without a `has_message` is not told to a topic. `own` is what the row is in stores that take
    no message, by the name of the sink.
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
    """What a micro-batch sends: a table's changes, by its id, from one position to another."""

    table: str
    before: Position
    after: Position

    @property
    def reached(self) -> Reached:
        """The end, as a consumer group notes it."""
        said = json.dumps({"table": self.table, "files": self.after.files})
        return Reached(self.after.version, said)


def next_chunk(remaining: Iterator[Change], rows: int) -> list[Change]:
    """Take the next rows, at most this many, and fewer if they are long."""
    chunk, characters = list[Change](), 0
    for change in remaining:
        chunk.append(change)
        characters += len(change.key) + len(change.value or "")
        if len(chunk) == rows or characters >= _CHUNK_CHARACTERS:
            break
    return chunk
