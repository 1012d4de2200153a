"""Observe the pipeline from outside its driver, through Delta logs and the broker, without a JVM.

    observer = Observer(STREAMS, settings)
    observation = observer.observe(datetime.now(UTC))  # can be called every second: reads are incremental

The result is correct even if jobs are idle or dead. The backlog is 0 once all records have been processed.
Missing or damaged tables and an unreachable broker are reported as reasons in the result, never as
exceptions. A problem in a stream's own tables affects only that stream.

In an object store, an observation takes one request for each table and each note about an export, and three
requests for each new commit. Streams are read in parallel.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from lakehouse.common.errors import SettingsError, StoreWord
from lakehouse.engine.ops_tables.event_table import EVENTS
from lakehouse.engine.records.dead_letters import DEAD_LETTERS
from lakehouse.operations.quality.results import GATES
from lakehouse.operations.telemetry import measures, progress, runs
from lakehouse.operations.telemetry.broker import Broker, Ends
from lakehouse.operations.telemetry.delta_log import Log
from lakehouse.operations.telemetry.health import health_of, store_state
from lakehouse.operations.telemetry.progress import ExportProgress
from lakehouse.operations.telemetry.queries import StreamQuery, gate_of, queries_of, tables_of
from lakehouse.operations.telemetry.small_tables import AuditsAndStops, Gates, OpenLetters
from lakehouse.operations.telemetry.values import (
    LayerLag,
    Observation,
    PartitionLag,
    QueryState,
    Run,
    StreamState,
)
from lakehouse.operations.telemetry.words import Health, StoreState, Word
from lakehouse.settings import Settings
from lakehouse.sinks.registry import LEAD, used_by
from lakehouse.storage.files import files_of
from lakehouse.storage.spark.query_errors import what_of
from lakehouse.storage.tables.specs import LEASE, Position, TableSpec, path_of
from lakehouse.streams.contract import OWN_TIME
from lakehouse.streams.definition import MergedTable, Stream

_RECENT_S = 0.5
_FRESH = timedelta(days=1)
"""A stream is stale if its newest event is older than this."""
_WITH_THE_BROKER = (Word.WELL, Word.IDLE, Word.EMPTY, Word.STALE, Word.BEHIND, Word.REFUSING)
"""Health words that could be too optimistic if the broker could not be queried."""


def observe(streams: Sequence[Stream], settings: Settings, now: datetime) -> Observation:
    """Observe the streams once. `now` is in UTC. For repeated observations, use an Observer."""
    observer = Observer(streams, settings)
    try:
        return observer.observe(now)
    finally:
        observer.close()


class Observer:
    """An observer of streams, for repeated use. Thread-safe: observations are serialized."""

    def __init__(self, streams: Sequence[Stream], settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._latest: Observation | None = None
        self._broker = Broker(settings.kafka.access)
        self._streams = [_Watched(stream, settings) for stream in streams]
        self._files, self._was_there = files_of(settings.lake), False
        self._letters = OpenLetters(_log_of(settings, DEAD_LETTERS))
        self._gates = Gates(_log_of(settings, GATES))
        self._happenings = AuditsAndStops(_log_of(settings, EVENTS))
        self._events_reason: str | None = None
        self._observed = 0.0

    def read_events(self) -> None:
        """Read all files of ops.events. An observation reads only a limited number of files, newest first."""
        with self._lock:
            unread = sys.maxsize
            while self._look_at_events() is None and 0 < self._happenings.unread < unread:
                unread = self._happenings.unread

    def observe(self, now: datetime) -> Observation:
        """Return an observation of the streams at `now` (UTC)."""
        with self._lock:
            # Read the lake before the topics. Otherwise, records that land in between would be beyond the
            # topics' ends.
            lake_reason = self._lake_away()
            others_reason = None if lake_reason is not None else self._look_at_lake()
            ends, broker_reason = self._ends()
            seen = _Seen(
                ends=ends,
                broker_reason=broker_reason,
                lake_reason=lake_reason,
                broker=self._broker,
                letters=self._letters,
                gates=self._gates,
                happenings=self._happenings,
                runs=runs.read_runs(self._settings.home, now),
                now=now,
            )
            states = tuple(one.state(seen) for one in self._streams)
            self._latest = Observation(
                now, states, lake_reason or others_reason, broker_reason, self._events_reason
            )
            self._observed = time.monotonic()
            return self._latest

    def latest(self) -> Observation:
        """Return the latest observation, or a new one if it was completed more than half a second ago."""
        seen, age_s = self._latest, time.monotonic() - self._observed
        return seen if seen is not None and age_s < _RECENT_S else self.observe(datetime.now(UTC))

    def close(self) -> None:
        """Disconnect from the broker."""
        with self._lock:
            self._broker.close()

    def _ends(self) -> tuple[Mapping[str, Mapping[int, Ends]], str | None]:
        try:
            return self._broker.ends([topic for one in self._streams for topic in one.topics]), None
        except Exception as error:  # noqa: BLE001 - clients raise many kinds of errors
            return {}, what_of(error)

    def _lake_away(self) -> str | None:
        """Return the reason why the lake cannot be read, or None if it can."""
        lake = self._settings.lake
        try:
            self._was_there = (self._was_there and self._files.is_far) or self._files.exist()
        except Exception as error:  # noqa: BLE001 - file systems raise many kinds of errors
            return f"the lake at {lake} cannot be read: {what_of(error)}"
        return None if self._was_there else f"there is no lake at {lake} yet"

    def _look_at_lake(self) -> str | None:
        """Read new commits to all tables. Return the reason if shared tables cannot be read, else None."""
        shared = ((DEAD_LETTERS, self._letters), (GATES, self._gates))
        looks: list[Callable[[], str | None]] = [
            *(one.refresh for one in self._streams),
            *(partial(_reason, spec.qualified_name, one.refresh) for spec, one in shared),
            self._look_at_events,
        ]
        if self._files.is_far:
            with ThreadPoolExecutor(len(looks)) as threads:
                reasons = list(threads.map(lambda look: look(), looks))
        else:
            reasons = [look() for look in looks]
        return "; ".join(reason for reason in reasons if reason is not None) or None

    def _look_at_events(self) -> str | None:
        """Read new events. Return the reason if ops.events cannot be read, else None."""
        reason = _reason(EVENTS.qualified_name, self._happenings.refresh)
        count = self._happenings.unread
        files, have = ("1 file", "has") if count == 1 else (f"{count:,} files", "have")
        unread = f"{files} of {EVENTS.qualified_name} {have} not been read" if count else None
        self._events_reason = reason or unread
        return reason


def _log_of(settings: Settings, spec: TableSpec) -> Log:
    return Log(path_of(settings.lake, spec.layer, spec.name))


def _reason(what: str, look: Callable[[], None]) -> str | None:
    """Call `look`, and return the reason if it fails, or None if it succeeds."""
    try:
        look()
    except Exception as error:  # noqa: BLE001 - a damaged table may cause any error
        return f"{what} cannot be read: {what_of(error)}"
    return None


@dataclass(frozen=True)
class _Seen:
    """The parts of an observation that all streams share: topics, letters, gates, events, processes, time."""

    ends: Mapping[str, Mapping[int, Ends]]
    broker_reason: str | None
    lake_reason: str | None
    broker: Broker
    letters: OpenLetters
    gates: Gates
    happenings: AuditsAndStops
    runs: Sequence[Run]
    now: datetime


def _log_named(settings: Settings, name: str) -> Log:
    layer, _, table = name.partition(".")
    return Log(path_of(settings.lake, layer, table), OWN_TIME if layer == "silver" else None)


class _Watched:
    """A stream, the logs of its tables, and the notes about its exports, as of the last `refresh`."""

    def __init__(self, stream: Stream, settings: Settings) -> None:
        self._stream = stream
        self._settings = settings
        self._queries = queries_of(stream)
        self._logs = {name: _log_named(settings, name) for name in tables_of(stream)}
        self._sent = {
            f"export.{kept.name}": ExportProgress(
                self._logs[f"gold.{kept.name}"],
                None if kept.export.topic is None else settings.topic(kept.export.topic),
            )
            for kept in stream.tables
        }
        self._stores = {f"export.{kept.name}": stores_of(kept, settings) for kept in stream.tables}
        self.topics = tuple(settings.topic(source.topic) for source in stream.sources)
        self._reason: str | None = None

    def refresh(self) -> None:
        """Read new commits and notes."""
        self._reason = _reason(f"stream {self._stream.name} in the lake", self._refresh)

    def _refresh(self) -> None:
        # Refresh a query's target before its sources. The sources then contain everything the query has read.
        for one in self._sent.values():
            one.refresh()
        for log in reversed(self._logs.values()):
            log.refresh()

    def state(self, seen: _Seen) -> StreamState:
        """Return the stream's state. After an error, the state contains only the reason."""
        try:
            return self._state(seen)
        except Exception as error:  # noqa: BLE001 - one stream's failure must not affect others
            reason = f"the state of {self._stream.name} cannot be determined: {what_of(error)}"
            return StreamState(self._stream.name, Health(Word.UNKNOWN, reason), lake_reason=reason)

    def _state(self, seen: _Seen) -> StreamState:
        name, has_lake, now = self._stream.name, (seen.lake_reason or self._reason) is None, seen.now
        layers = [one for one in self._queries if has_lake and one.layer != "bronze"]
        times = [found for name, log in self._logs.items() if (found := measures.event_times(name, log))]
        newest = max((one.newest for one in times), default=None)
        letters = seen.letters.by_stream
        query_names = [one.name for one in self._queries]
        state = StreamState(
            name,
            Health(Word.UNKNOWN, "not determined yet"),
            partitions=tuple(
                lag for one in self._queries if one.layer == "bronze" for lag in self._partitions(one, seen)
            ),
            layers=tuple(lag for one in layers for lag in self._layers(one, now)),
            tables=tuple(measures.table_state(*one) for one in self._logs.items() if one[1].version >= 0),
            queries=tuple(map(self._query, self._queries)),
            event_times=tuple(times),
            open_letters=None if letters is None or not has_lake else letters.get(name, 0),
            gate=seen.gates.of(name),
            newest_event=newest,
            freshness_s=None if newest is None else (now - newest).total_seconds(),
            runs=runs.of_stream(seen.runs, name, [*query_names, gate_of(name)]),
            audit=seen.happenings.audit_of(name) if has_lake else None,
            lake_reason=self._reason,
            refused=seen.happenings.refused_of(name) if has_lake else (),
        )
        unrun = runs.unrun(state.queries, state.runs, seen.happenings.stops_of(name), now)
        queries = tuple(replace(one, stores=self._states(one, state, seen, unrun)) for one in state.queries)
        state = replace(state, queries=queries)
        return replace(state, health=self._health(state, seen, unrun))

    def _states(
        self, query: QueryState, state: StreamState, seen: _Seen, unrun: Mapping[str, datetime | None]
    ) -> tuple[StoreState, ...]:
        """Return the state of each store that an export fills."""
        if query.name not in self._stores:
            return ()
        stores = self._stores[query.name]
        lag = next((one for one in state.layers if one.query == query.name), None)
        if lag is None:
            reason = seen.lake_reason or self._reason or "the lake cannot be read"
            return tuple(StoreState(name, StoreWord.UNKNOWN, reason) for name in stores)
        lacking = self._sent[query.name].lacking
        return tuple(
            store_state(
                name,
                lag,
                lacking.get(name),
                away=seen.broker_reason if name == LEAD.name else None,
                is_held=state.gate is not None and not state.gate.is_open,
                is_run=query.layer not in unrun,
                now=seen.now,
                lag_limit=timedelta(seconds=self._settings.telemetry.lag_limit_s),
            )
            for name in stores
        )

    def _health(self, state: StreamState, seen: _Seen, unrun: Mapping[str, datetime | None]) -> Health:
        lake_reason = seen.lake_reason or self._reason
        if lake_reason is not None:
            return Health(Word.UNKNOWN, lake_reason)
        health = health_of(
            state.partitions,
            state.layers,
            state.queries,
            gate=state.gate,
            newest_event=state.newest_event,
            unrun=unrun,
            now=seen.now,
            lag_limit=timedelta(seconds=self._settings.telemetry.lag_limit_s),
            fresh=_FRESH,
            refused=state.refused if state.open_letters != 0 else (),
            failing=[query for run in state.runs for query in run.queries if query.error is not None],
        )
        denied = (seen.broker.denied.get(topic) for topic in self.topics)
        broker_reason = seen.broker_reason or next(filter(None, denied), None)
        if broker_reason is not None and health.word in _WITH_THE_BROKER:
            return Health(Word.UNKNOWN, broker_reason)
        leased = [name for name, log in self._logs.items() if LEASE in log.properties]
        if leased and health.word in (Word.BEHIND, Word.STALLED):
            why = f"its step waits while {leased[0]} is being rebuilt, replayed or maintained"
            return replace(health, reason=f"{health.reason}; {why}")
        return health

    def _partitions(self, query: StreamQuery, seen: _Seen) -> list[PartitionLag]:
        topic = self._settings.topic(*query.reads)
        offsets = progress.kafka_offsets(self._logs[query.name], query.name, topic)
        if seen.broker_reason is not None:
            return measures.unknown_partitions(topic, offsets, seen.broker_reason)
        if topic not in seen.ends:
            why = seen.broker.denied.get(topic, f"the broker has no topic {topic}")
            return measures.unknown_partitions(topic, offsets, why)
        return measures.partition_lags(topic, offsets, seen.ends[topic], seen.broker, seen.now)

    def _layers(self, query: StreamQuery, now: datetime) -> list[LayerLag]:
        return [
            measures.layer_lag(query, name, self._logs[name], self._position(query, name), now)
            for name in query.reads
        ]

    def _position(self, query: StreamQuery, source: str) -> Position | None:
        if query.target is None:
            return self._sent[query.name].position
        return progress.position(self._logs[query.target], query.name, self._logs[source])

    def _query(self, query: StreamQuery) -> QueryState:
        if query.target is None:
            sent = self._sent[query.name]
            done = None if sent.position is None else sent.position.version - 1
            return QueryState(query.name, query.layer, done, None if done is None else sent.at)
        log = self._logs[query.target]
        at, size = progress.written_at(log, query.name), progress.written_bytes(log, query.name)
        return QueryState(query.name, query.layer, None if at is None else log.version, at, size)


def stores_of(table: MergedTable, settings: Settings) -> tuple[str, ...]:
    """Return the names of the stores that a table is exported to, the lead first."""
    lead = () if LEAD.place(table, settings) is None else (LEAD.name,)
    try:
        return (*lead, *(kind.name for kind in used_by(table, settings)))
    except SettingsError:  # a run refuses these settings
        return lead
