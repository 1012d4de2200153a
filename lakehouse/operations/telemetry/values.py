"""Observations of the pipeline from outside its driver, as plain values without Spark.

Times are UTC. An unknown number is null; its object then has a `reason`. After a catch-up, a backlog is
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
    than allowed while micro-batches are written, a producer's open transaction hides records that long, or a
    store lacks rows. REFUSING: silver has refused a larger share of its records than allowed, and letters are
    open. UNKNOWN: the lake or the broker could not be read, or records wait and their age is unknown.
    BLOCKED: the gate is closed. STALLED: records wait longer than allowed, and no micro-batch was written
    that long. STOPPED: records wait for a layer that no process runs.
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
    """A stream's word, the reason for it, and since when it applies; null: unknown.

    `is_unrun`: the reason says that no process runs the stream, or some of its layers.
    """

    word: Word
    reason: str
    since: datetime | None = None
    is_unrun: bool = False


@dataclass(frozen=True)
class OpenTransaction:
    """A producer's open transaction. Read-committed consumers get no record after its beginning.

    `offsets` is the number of offsets from the last stable one to the partition's end. `producer` is the
    transactional id, and `since` the start of the transaction. If the broker does not provide them, they are
    the producer id and the time of its last write.
    """

    offsets: int
    producer: str
    since: datetime


@dataclass(frozen=True)
class PartitionLag:
    """Bronze's backlog in a partition of a topic.

    `position` is the offset after the last landed one, `end` the one after the last committed record.
    `seconds` is the age of the first unread record by the Kafka timestamp of its batch. `open_transaction` is
    the transaction that hides records from `end` on, null for none.
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
    """The backlog of a query in a table.

    `query` reads `source`; both are qualified names, such as silver.metrics_events and bronze.metrics_events.
    For an export, `records` counts rows of the change feed, where an update is two rows. `seconds` is the age
    of the first commit with unread rows, `commits` the number of such commits.
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
    """A table as of its newest commit; `rows` is null if a file has no statistics."""

    name: str
    version: int
    committed_at: datetime | None
    files: int
    size_bytes: int
    rows: int | None


@dataclass(frozen=True)
class QueryState:
    """The progress of a query, as noted in its target table or by its export.

    `done` is the version of its target table, or the last version that it has sent; `done_at` is the time of
    its last micro-batch. Both are null before the first. `behind` has the names of an export's stores that
    lack rows because they were unavailable or full.
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
    """A stream's gate as last noted in ops.gates."""

    is_open: bool
    changed_at: datetime
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """A stream's last audit in ops.events."""

    at: datetime
    is_clean: bool


@dataclass(frozen=True)
class Refused:
    """The last note of a run in ops.events on a silver table's judged and refused records.

    A live run counts the last hour, a catch-up run all its records. `limit` is the allowed share, and
    `is_over` tells whether it is exceeded. `causes` has the most frequent reasons, with their numbers.
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

    `batch` is the version that the micro-batch wrote or sent. Null before the first one. `phases_s` has the
    durations of its phases in seconds, by name. `error` is the current failure, null for none.
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
    """A process that runs layers of streams, by its last heartbeat.

    `telemetry_port` is null if it serves no metrics.
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

    `open_letters` is the number of its open dead letters, null while they are counted for the first time.
    `gate` is null if it has never been checked. `newest_event` is the greatest own event time in its silver
    tables, `freshness_s` its age. `runs` has the processes that run the stream, with its queries. `audit` is
    null if there was none. `lake_reason` is the reason why the stream's own tables could not be read, null if
    they could. `refused` has the last note on refusals of each silver table.
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
    """Every stream at one time; the reasons tell why the lake, a part of it, or the broker was not read."""

    at: datetime
    streams: tuple[StreamState, ...]
    lake_reason: str | None = None
    broker_reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the observation as a dictionary that can be serialized as JSON, with times in ISO 8601."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value
