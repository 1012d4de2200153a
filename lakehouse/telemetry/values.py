"""What is seen of the pipeline from outside its driver: plain values, without Spark.

Times are UTC. A number is null where it cannot be known, and then what it belongs to has a `reason`. What has
caught up has a backlog of exactly 0 records and 0 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Word(StrEnum):
    """How a stream is, in one word, the best first.

    EMPTY: nothing has landed yet. BEHIND: records wait for longer than they may, and micro-batches are
    written. STALE: all has been read, but the newest event is old. BLOCKED: its gate is closed. STALLED:
    records wait for longer than they may, and the process that runs the layer has written no micro-batch for
    as long. STOPPED: records wait for a layer that no process runs. UNKNOWN: the lake or the broker does not
    say.
    """

    WELL = "well"
    EMPTY = "empty"
    STALE = "stale"
    BEHIND = "behind"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"
    STALLED = "stalled"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Health:
    """A stream's word, the reason for it, and since when it is so; null where nothing says since when."""

    word: Word
    reason: str
    since: datetime | None = None


@dataclass(frozen=True)
class PartitionLag:
    """Records of a topic's partition that bronze has not written.

    `position` is the offset after the last one written, `end` the one after the last committed record.
    `seconds` is the age of the first unread record by its Kafka timestamp.
    """

    topic: str
    partition: int
    position: int | None
    end: int | None
    records: int | None
    seconds: float | None
    reason: str | None = None


@dataclass(frozen=True)
class LayerLag:
    """Rows of a table that the query of a later layer has not written on.

    `query` reads `source`; both are qualified names, silver.metrics_events and bronze.metrics_events. Of an
    export rows are those of the change feed, an update being two. `seconds` is the age of the first commit
    with unread rows, `commits` how many of those there are.
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
    """A table as its newest commit has left it; `rows` is null where a file has no statistics."""

    name: str
    version: int
    committed_at: datetime | None
    files: int
    size_bytes: int
    rows: int | None


@dataclass(frozen=True)
class QueryState:
    """How far a query has come by its checkpoint.

    `planned` is the number of the last micro-batch that was begun, at `planned_at`; `done` that of the last
    one that is noted as done, at `done_at`. Null before the first.
    """

    name: str
    layer: str
    planned: int | None
    planned_at: datetime | None
    done: int | None
    done_at: datetime | None


@dataclass(frozen=True)
class EventTimes:
    """Of a silver table: its greatest event time to the millisecond, and the watermark that follows."""

    table: str
    newest: datetime
    watermark: datetime


@dataclass(frozen=True)
class Gate:
    """A stream's gate as last noted in ops.gates."""

    is_open: bool
    changed_at: datetime
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """A stream's last audit as noted in ops.events, UTC."""

    at: datetime
    is_clean: bool


@dataclass(frozen=True)
class QueryRun:
    """What a process has done of one query since it started: its last micro-batch, done at `at`.

    Null before the first. `phases_s` are seconds by Spark's names for the phases of the last micro-batch that
    Spark has measured, which is the one before while the query waits. `error` is what fails now, null for
    nothing.
    """

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
    """A process that runs layers of streams, by its last sign of life.

    `telemetry_port` is null where it serves no metrics.
    """

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
    """A stream: how it is, what waits before each of its layers, its tables and its queries.

    `open_letters` are its dead letters that are neither replayed nor discarded, null while they are counted
    for the first time. `gate` is null where none has ever been asked. `newest_event` is the greatest event
    time of all its silver tables, `freshness_s` how long ago that is. `runs` are the processes that run it
    now, with its own queries. `audit` is null where none is noted.
    """

    name: str
    health: Health
    partitions: tuple[PartitionLag, ...]
    layers: tuple[LayerLag, ...]
    tables: tuple[TableState, ...]
    queries: tuple[QueryState, ...]
    event_times: tuple[EventTimes, ...]
    open_letters: int | None
    gate: Gate | None
    newest_event: datetime | None
    freshness_s: float | None
    runs: tuple[Run, ...] = ()
    audit: Audit | None = None


@dataclass(frozen=True)
class Observation:
    """Every stream at a moment; the reasons say why the lake or the broker could not be looked at."""

    at: datetime
    streams: tuple[StreamState, ...]
    lake_reason: str | None = None
    broker_reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON has it, times in ISO 8601."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value
