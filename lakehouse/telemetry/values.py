"""What is seen of the pipeline from outside its driver: plain values, without Spark.

Times are UTC. A number is null if it is unknown; then its owner has a `reason`. After catching up, a backlog
is exactly 0 records and 0 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Word(StrEnum):
    """A stream's state in one word, the best first.

    EMPTY: nothing has landed yet. BEHIND: records wait for longer than allowed, and micro-batches are
    written, or a producer's open transaction hides records for as long. STALE: all has been read, but the
    newest event is old. REFUSING: silver has refused more of the records that it judged than allowed, and
    letters are open. BLOCKED: its gate is closed. STALLED: records wait for longer than allowed, and the
    process that runs the layer has written no micro-batch for as long. STOPPED: records wait for a layer that
    no process runs. UNKNOWN: the lake or the broker does not say, or records wait and nothing tells for how
    long.
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
    """A stream's word, the reason for it, and since when it applies; null if nothing says since when."""

    word: Word
    reason: str
    since: datetime | None = None


@dataclass(frozen=True)
class OpenTransaction:
    """A producer's transaction that has not ended. Nobody gets committed records behind its beginning.

    `offsets` are those between the last stable one and the partition's end. `producer` is its transactional
    id, and `since` when the transaction began. If the broker tells neither, they are the producer's number,
    and when it last wrote.
    """

    offsets: int
    producer: str
    since: datetime


@dataclass(frozen=True)
class PartitionLag:
    """Records of a topic's partition that bronze has not written.

    `position` is the offset after the last one written, `end` the one after the last committed record.
    `seconds` is the age of the first unread record by the Kafka timestamp of its batch. `open_transaction` is
    what hides records from `end` on, null for nothing.
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
    """Rows of a table that a later layer's query has not processed.

    `query` reads `source`; both are qualified names, such as silver.metrics_events and bronze.metrics_events.
    For an export, rows are those of the change feed, where an update is two. `seconds` is the age of the
    first commit with unread rows, `commits` the number of such commits.
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
    """How far a query has come, as its table says.

    `done` is the version of the table that it fills, or the last one that it has sent; `done_at` is when it
    last wrote a micro-batch. Null before the first. `behind` are the stores, by name, that lack rows of what
    an export has sent to the others, because they were away or full.
    """

    name: str
    layer: str
    done: int | None
    done_at: datetime | None
    behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class EventTimes:
    """A silver table's greatest event time, to the millisecond, and the resulting watermark."""

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
    """A stream's last audit as noted in ops.events, UTC."""

    at: datetime
    is_clean: bool


@dataclass(frozen=True)
class Refused:
    """What a run has last noted in ops.events of a silver table: records judged and refused, UTC.

    A live run counts the last hour, one that catches up all of its records. `is_over`: more than allowed,
    which is the share `limit`. `causes` are the commonest reasons, with their numbers.
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
    """What a process has done with one query since it started: its last micro-batch, done at `at`.

    `batch` is the version that the micro-batch wrote, or sent. Null before the first. `phases_s` are the
    seconds of its phases, by name. `error` is what currently fails, null for nothing.
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

    `telemetry_port` is null if it serves no metrics.
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
    """A stream: its health, the backlog of each layer, its tables and its queries.

    `open_letters` are its dead letters that are neither replayed nor discarded, null while they are counted
    for the first time. `gate` is null if none has ever been checked. `newest_event` is the greatest event
    time in its silver tables, `freshness_s` its age. `runs` are the processes that run it now, with their
    queries of this stream. `audit` is null if none is noted. `lake_reason` says why its own tables could not
    be looked at, null if they could. `refused` are the last notes on its silver tables that a run has made.
    """

    name: str
    health: Health
    partitions: tuple[PartitionLag, ...]
    layers: tuple[LayerLag, ...]
    tables: tuple[TableState, ...]
    queries: tuple[QueryState, ...]
    event_times: tuple[EventTimes, ...]
    open_letters: int | None
    gate: StreamGate | None
    newest_event: datetime | None
    freshness_s: float | None
    runs: tuple[Run, ...] = ()
    audit: Audit | None = None
    lake_reason: str | None = None
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True)
class Observation:
    """Every stream at a moment; the reasons say why the lake, or a part of it, or the broker was not seen."""

    at: datetime
    streams: tuple[StreamState, ...]
    lake_reason: str | None = None
    broker_reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all of it for JSON, times in ISO 8601."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value
