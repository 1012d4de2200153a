"""What a record becomes: the function of docs/decisions/2026-11-28-what-a-record-becomes.md, in plain Python.

    found = outcomes(records, decisions, settings, taken)
    found["transactions", 0, 17]          row, or letter with its status and rules

Slow on purpose: one record after the other, in their order, each id a list that is looked through again.
`records` are all that have ever landed, also those that retention has taken from bronze since: it changes no
answer. Times are microseconds since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.oracles.judging import EARLIEST_US, Contract

Place = tuple[str, int, int]
"""Topic, partition, offset."""

Headers = tuple[tuple[str, bytes | None], ...]

NO_TIMESTAMP = -1  # in Kafka's protocol


@dataclass(frozen=True)
class Record:
    """A record of bronze; `value` is the JSON that it says, whatever its format. No value: null."""

    place: Place
    ingested_at_us: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    kafka_timestamp_ms: int = NO_TIMESTAMP


@dataclass(frozen=True)
class Decision:
    """What a person has decided about the record at `place`, when silver had processed all until `after_us`.

    `at_us` is later than that of any earlier decision. A replay may be put down for any letter that was open:
    one that its record does not pass changes nothing. `allows_late` is a replay's --allow-late. `by` is the
    record that was sent again, of a resolve.
    """

    what: Literal["replay", "discard", "resolve"]
    place: Place
    after_us: int
    at_us: int
    by: Place | None = None
    allows_late: bool = False


@dataclass(frozen=True)
class Lateness:
    """How late a record may be, null: however late; from which offset of each (topic, partition) on, else all."""

    seconds: int | None
    begins: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What a source's settings say. Of `lateness`, the last one that is for a record holds for it.

    `unique_by` and `sequence_by` are a field, or `header:NAME`. `deletion_key` says how the key of a record
    without a value is read as an id: "text", "long" or "json:FIELD".
    """

    contract: Contract
    unique_by: str | None = None
    sequence_by: str | None = None
    lateness: tuple[Lateness, ...] = (Lateness(7 * 24 * 3600),)
    future_tolerance_s: int = 300
    earliest_us: int = EARLIEST_US
    deletion_key: str = "text"


@dataclass(frozen=True)
class Taken:
    """What one run of retention has taken, when silver had processed all until `after_us`.

    No record that is processed later is accepted with an event time before `before_us`, which is null if
    nothing has been taken of silver or of gold. Rows of silver have left it if they lie before `silver_us`
    and their record up to `gone`, the last offset taken from bronze of each (topic, partition).
    """

    after_us: int
    before_us: int | None = None
    silver_us: int | None = None
    gone: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a record is: a row of silver, or a letter.

    status  of its letter; of a row that a replay has admitted "replayed", of any other row null
    rules   for which it is refused; those of a row, and of a letter that is replayed, discarded or resent, are
            those that it was refused for
    row     the columns of the contract, with `event_time` and `own_time`; null for a letter
    by      of a resent letter, the record that was sent again
    """

    kind: Literal["row", "letter"]
    status: str | None = None
    rules: frozenset[str] = frozenset()
    row: Mapping[str, Any] | None = None
    by: Place | None = None
