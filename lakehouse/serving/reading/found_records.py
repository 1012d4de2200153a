"""Where a Kafka record was found in each layer: plain values, without the record's content. Times are UTC."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, order=True)
class Place:
    """A record's coordinates in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True)
class InBronze:
    """The record in bronze: its Kafka timestamp and landing time (UTC), or the likely reason for its absence.

    `kafka_timestamp` is also None if Kafka's timestamp is not a valid time.
    """

    table: str
    is_there: bool
    kafka_timestamp: datetime | None = None
    ingested_at: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True)
class InSilver:
    """The record's row in silver and its event time (UTC), or the likely reason why there is no row."""

    table: str
    is_there: bool
    event_time: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True)
class LetterOf:
    """A dead letter of the record, with the time (UTC) when the record was first refused."""

    id: str
    status: str
    first_seen: datetime | None
    reasons: tuple[Mapping[str, str | None], ...]


@dataclass(frozen=True)
class Sent:
    """The export's progress in a gold table. `topic` is None if only stores receive the table.

    `stores` names the stores besides Kafka to which the settings export the table.
    `version` is the table's newest version. `sent_version` is the last version whose changes the export has
    sent, and `sent_at` the time (UTC) when it did so; both are None if nothing has been sent. `rows_waiting`
    counts change-feed rows, and is None if that is unknown. `behind` names the stores that lack
    rows. `reason` says why some rows might not have been sent, and is None if every version has been sent.
    """

    topic: str | None
    stores: tuple[str, ...]
    version: int | None
    sent_version: int | None
    sent_at: datetime | None
    rows_waiting: int | None
    behind: tuple[str, ...]
    reason: str | None


@dataclass(frozen=True)
class InGold:
    """The row of a gold table into which the record is merged.

    `key` maps key columns to values, with times as datetimes (UTC), and is None if it cannot be computed from
    the silver row. `is_there` says whether a row with this key exists, and is None if the key is None.
    `reason` says why the key is unknown, why there is no row, or why the row might still lack the record.
    """

    table: str
    key: Mapping[str, Any] | None
    is_there: bool | None
    reason: str | None
    sent: Sent


@dataclass(frozen=True)
class InStream:
    """The record in the tables of one stream."""

    stream: str
    bronze: InBronze
    silver: InSilver
    letters: tuple[LetterOf, ...]
    gold: tuple[InGold, ...]


@dataclass(frozen=True)
class FoundRecord:
    """Where a record is in each stream that reads its topic. `streams` is empty if no stream reads it."""

    topic: str
    partition: int
    offset: int
    streams: tuple[InStream, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON values, with times in ISO 8601 UTC and exact numbers as text."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    is_json = (
        value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_json else str(value)
