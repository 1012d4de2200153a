"""Observations of the pipeline from outside its driver, as plain values that do not need Spark.

Times are UTC. An unknown number is None, and its object then has a `reason`. Once caught up, a backlog is
exactly 0 records and 0 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel


class Word(StrEnum):
    """A stream's health in one word, from best to worst.

    EMPTY: silver has accepted no record yet. STALE: the newest event is too old. BEHIND: records wait longer
    than allowed although micro-batches are being written, a producer's open transaction has hidden records
    for that long, or a store lacks rows. REFUSING: silver has refused a larger share of its records than
    allowed, and letters are open. UNKNOWN: the lake or the broker could not be read, or records of unknown
    age are waiting. BLOCKED: the gate is closed. STALLED: records wait longer than allowed, and no
    micro-batch has been written in that time. STOPPED: records wait for a layer that no process runs.
    """

    WELL = "well"
    EMPTY = "empty"
    STALE = "stale"
    BEHIND = "behind"
    REFUSING = "refusing"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"
    STALLED = "stalled"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Health:
    """A stream's health, the reason, and since when it applies (None: unknown).

    `is_unrun` is true if the reason says that no process runs the stream or some of its layers.
    """

    word: Word
    reason: str
    since: datetime | None = None
    is_unrun: bool = False


@dataclass(frozen=True)
class OpenTransaction:
    """A producer's open transaction; read-committed consumers get no records past its start.

    `offsets` is the number of offsets from the last stable offset to the partition's end. `producer` is the
    transactional id and `since` the transaction's start; if the broker does not provide these, they are the
    producer id and the time of its last write.
    """

    offsets: int
    producer: str
    since: datetime


@dataclass(frozen=True)
class PartitionLag:
    """Bronze's backlog in a partition of a topic.

    `position` is the offset after the last landed record, `end` the one after the last committed record.
    `seconds` is the age of the first unread record by the Kafka timestamp of its batch. `open_transaction` is
    the transaction that hides records from `end` on; None if there is none.
    """

    topic: str
    partition: int
    position: int | None
    end: int | None
    records: int | None
    seconds: float | None
    reason: str | None = None
    open_transaction: OpenTransaction | None = None


@dataclass(frozen=True)
class LayerLag:
    """A query's backlog in one of its source tables.

    `query` reads `source`; both are qualified names, such as silver.metrics_events and bronze.metrics_events.
    For an export, `records` counts rows of the change feed, where an update is two rows. `seconds` is the age
    of the first commit with unread rows; `commits` is the number of such commits.
    """

    layer: str
    query: str
    source: str
    records: int | None
    seconds: float | None
    commits: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class TableState:
    """A table as of its newest commit; `rows` is None if a file has no statistics."""

    name: str
    version: int
    committed_at: datetime | None
    files: int
    size_bytes: int
    rows: int | None


@dataclass(frozen=True)
class QueryState:
    """The progress of a query, as recorded in its target table or, for an export, in its note.

    `done` is the version of its target table, or the last version that it has sent; `done_at` is the time of
    its last micro-batch. Both are None before the first micro-batch. `behind` names the stores of an export
    that lack rows because they were unavailable or full.
    """

    name: str
    layer: str
    done: int | None
    done_at: datetime | None
    behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class EventTimes:
    """A silver table's greatest own event time, to the millisecond, and the resulting watermark."""

    table: str
    newest: datetime
    watermark: datetime


@dataclass(frozen=True)
class StreamGate:
    """A stream's gate, as last recorded in ops.gates."""

    is_open: bool
    changed_at: datetime
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """A stream's latest audit in ops.events."""

    at: datetime
    is_clean: bool


@dataclass(frozen=True)
class Refused:
    """A run's latest report, in ops.events, of a silver table's judged and refused records.

    A live run counts the last hour; a catch-up run counts all its records. `limit` is the allowed share, and
    `is_over` says whether it is exceeded. `causes` lists the most frequent reasons with their counts.
    """

    table: str
    at: datetime
    judged: int
    refused: int
    limit: float
    is_over: bool
    causes: tuple[str, ...] = ()


@dataclass(frozen=True)
class QueryRun:
    """A query in a running process, with its last micro-batch, which ended at `at`.

    `batch` is the version that the micro-batch wrote or sent; None before the first micro-batch. `phases_s`
    maps phases to durations in seconds. `error` is the current failure; None if there is none.
    """

    __pydantic_config__: ClassVar = ConfigDict(alias_generator=to_camel)

    name: str
    batch: int | None = None
    at: datetime | None = None
    rows: int | None = None
    rows_per_s: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    restarts: int = 0


@dataclass(frozen=True)
class Run:
    """A process that runs layers of streams, as of its last heartbeat.

    `telemetry_port` is None if it serves no metrics.
    """

    __pydantic_config__: ClassVar = ConfigDict(alias_generator=to_camel)

    host: str
    pid: int
    layers: tuple[str, ...]
    streams: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    telemetry_port: int | None
    queries: tuple[QueryRun, ...] = ()


@dataclass(frozen=True)
class StreamState:
    """A stream: its health, the backlog of each layer, its tables and its queries.

    `open_letters` is the number of open dead letters; None while they are being counted for the first time.
    `gate` is None if it has never been checked. `newest_event` is the greatest own event time in the silver
    tables, and `freshness_s` its age. `runs` lists the processes that run the stream, with its queries.
    `audit` is None if there was no audit. `lake_reason` says why the stream's own tables could not be read;
    None if they could. `refused` holds the latest report of refusals for each silver table.
    """

    name: str
    health: Health
    partitions: tuple[PartitionLag, ...] = ()
    layers: tuple[LayerLag, ...] = ()
    tables: tuple[TableState, ...] = ()
    queries: tuple[QueryState, ...] = ()
    event_times: tuple[EventTimes, ...] = ()
    open_letters: int | None = None
    gate: StreamGate | None = None
    newest_event: datetime | None = None
    freshness_s: float | None = None
    runs: tuple[Run, ...] = ()
    audit: Audit | None = None
    lake_reason: str | None = None
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True)
class Observation:
    """All streams at one point in time; the reasons say why the lake or the broker could not be read."""

    at: datetime
    streams: tuple[StreamState, ...]
    lake_reason: str | None = None
    broker_reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the observation as a JSON-serializable dictionary, with times in ISO 8601."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value
