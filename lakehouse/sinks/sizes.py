"""Find changes too large for their topic, and describe rows that a topic or store refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse.sinks.change import Change
from lakehouse.storage.kafka.internals import record_bytes

_OVERHEAD = 128  # upper bound for a record and its batch, apart from key and value
_LONGEST_CHARACTER = 4


TOO_LARGE, REFUSED = "too_large", "refused"
"""Reasons; REFUSED is followed by the store's message."""


@dataclass(frozen=True)
class UnsentRow:
    """A row state refused by its topic or store: its identity, the reason, and size and limit in bytes.

    The size is that of the record alone in a batch, as the client computes it: key and value in UTF-8 plus up
    to 95 bytes, at most 20 more than the broker counts. If the size is None, it is not the reason.
    `value_sha256` is the hex digest of the message's value, empty for a delete.
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
    """Changes that their topic accepts, in order, and those that it refuses."""

    fitting: list[Change]
    refused: tuple[UnsentRow, ...]


def weigh(changes: Iterable[Change], limit_bytes: int) -> Weighed:
    """Split the changes that go to the topic by whether their records exceed its size limit."""
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
