"""Find changes that are too large for their topic, and describe rows that a topic or store refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse.sinks.change import Change
from lakehouse.storage.kafka.internals import record_bytes

_OVERHEAD = 128  # upper bound, in bytes, for a record and its batch without key and value
_LONGEST_CHARACTER = 4


TOO_LARGE, REFUSED = "too_large", "refused"
"""Reasons for not sending a row. REFUSED is followed by the store's message."""


@dataclass(frozen=True)
class UnsentRow:
    """A row state refused by its topic or store: its identity, the reason, and the size and limit in bytes.

    For a topic, `size_bytes` is the size that the client computes for a batch of this one record: key and
    value in UTF-8, plus up to 95 bytes. It exceeds the broker's count by at most 20 bytes. `size_bytes` is
    None if the size is not the reason. `value_sha256` is the hex digest of the message's value, or empty for
    a delete.
    """

    key: str
    row_key: str
    version: int
    value_sha256: str
    reason: str
    size_bytes: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True)
class Weighed:
    """Changes that the topic accepts, in order, and rows that it refuses."""

    fitting: list[Change]
    refused: tuple[UnsentRow, ...]


def weigh(changes: Iterable[Change], limit_bytes: int) -> Weighed:
    """Split the changes that have a message by whether their records exceed the topic's size limit."""
    fitting, refused = [], []
    for change in [change for change in changes if change.has_message]:
        found = _too_large(change, limit_bytes)
        if found is None:
            fitting.append(change)
        else:
            refused.append(found)
    return Weighed(fitting, tuple(refused))


def _too_large(change: Change, limit_bytes: int) -> UnsentRow | None:
    characters = len(change.key) + len(change.value or "")
    if _LONGEST_CHARACTER * characters + _OVERHEAD <= limit_bytes:
        return None
    key, value = change.key.encode(), None if change.value is None else change.value.encode()
    size = record_bytes(key, value)
    if size <= limit_bytes:
        return None
    digest = "" if value is None else hashlib.sha256(value).hexdigest()
    return UnsentRow(change.key, change.row_key, change.version, digest, TOO_LARGE, size, limit_bytes)
