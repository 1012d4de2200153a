"""Observations of the pipeline from outside its driver, as plain values that do not need Spark.

Times are in UTC. An unknown number is None, and `reason` then says why. Once a query has caught up, its
backlog is exactly 0 records and 0 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from lakehouse.operations.telemetry.words import Health, StoreState


@dataclass(frozen=True)
class OpenTransaction:
    """A producer's open transaction. Read-committed consumers receive no records past its start.

    `offsets` is the number of offsets from the last stable offset to the partition's end. `producer` is the
    transactional id, and `since` is the transaction's start. If the broker does not provide them, `producer`
    is the producer id, and `since` is the time of the producer's last write.
    """

    offsets: int
    producer: str
    since: datetime


@dataclass(frozen=True)
class PartitionLag:
    """Bronze's backlog in a topic partition.

    `position` is the offset after the last landed record, and `end` is the offset after the last committed
    record. `seconds` is the first unread record's age, based on its batch's Kafka timestamp.
    `open_transaction` is the transaction that hides the records after `end`, or None if no transaction is
    open.
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

    `query` reads `source`. Their names are qualified, such as silver.metrics_events and
    bronze.metrics_events. For an export, `records` counts rows in the change feed, where an update is two
    rows. `seconds` is the age of the first commit with unread rows, and `commits` is the number of such
    commits.
    """

    layer: str
    query: str
    source: str
    records: int | None
    seconds: float | None
    commits: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Backlog:
    """The records and rows that wait for a layer of a stream.

    records  None if some of the layer's backlog is unknown
    seconds  the oldest record's age: 0 if nothing waits, None if unknown
    """

    layer: str
    records: int | None
    seconds: float | None


@dataclass(frozen=True)
class TableState:
    """A table's state at its newest commit. `rows` is None if a file has no statistics."""

    name: str
    version: int
    committed_at: datetime | None
    files: int
    size_bytes: int
    rows: int | None


@dataclass(frozen=True)
class QueryState:
    """A query's progress, as recorded in its target table or in an export's note.

    `done` is the target table's version, or the last version that an export has sent. `done_at` is the time
    of the last micro-batch. `done` and `done_at` are None before the first micro-batch. `size_bytes` is the
    size of the files that the last micro-batch added; None if unknown, and for an export. `stores` contains
    the state of each store that an export fills.
    """

    name: str
    layer: str
    done: int | None
    done_at: datetime | None
    size_bytes: int | None = None
    stores: tuple[StoreState, ...] = ()


@dataclass(frozen=True)
class EventTimes:
    """The latest event time in a silver table's records, to the millisecond, and the watermark.

    Kafka timestamps do not count as event times.
    """

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
    """The latest report in ops.events about how many records of a silver table were validated and refused.

    A live run counts the last hour's records, and a catch-up run counts all its records. `limit` is the
    allowed share of refused records, and `is_over` says whether the share is exceeded. `causes` lists the
    most frequent reasons with their counts.
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
    """A query in a running process, and its last micro-batch, which ended at `at`.

    `batch` is the table version that the micro-batch wrote or sent, or None before the first micro-batch.
    `phases_s` contains durations in seconds, keyed by phase. `error` is the current failure, and `failed_at`
    is when the query began to fail; both are None if the query works.
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
    failed_at: datetime | None = None

    @property
    def failure(self) -> str:
        """The current failure in words, with the query's name."""
        return f"{self.name} fails: {self.error}"


@dataclass(frozen=True)
class Run:
    """A process that runs layers of streams, as of its last heartbeat.

    `telemetry_port` is None if the process serves no metrics.
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
    """The state of a stream: its health, the backlog of each layer, its tables and its queries.

    open_letters  the number of open dead letters; None while they are being counted for the first time
    gate          None if the gate has never been checked
    newest_event  the latest event time in the silver tables' records; `freshness_s` is its age
    runs          the processes that run the stream, with the stream's queries
    audit         None if the stream has never been audited
    lake_reason   the reason why the stream's own tables could not be read, or None if they could be read
    refused       the latest report of refusals for each silver table
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
    """The states of all streams at one time. The reasons say why the lake or broker could not be read.

    `events_reason` says why audits, stops and refusals in ops.events could be missing.
    """

    at: datetime
    streams: tuple[StreamState, ...]
    lake_reason: str | None = None
    broker_reason: str | None = None
    events_reason: str | None = None

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
