"""The tables that `lakehouse status --steps` adds: steps' backlogs, stores' states, tables' sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from lakehouse.cli.reports.columns import Column, clock, number, table
from lakehouse.common.quantities import told_s
from lakehouse.operations.telemetry import EventTimes, QueryState, StoreState, StreamState, TableState

_FULL, _WIDE, _USUAL = 160, 120, 80  # terminal widths at which more columns are shown


@dataclass(frozen=True)
class _Waiting:
    """A step's backlog in a table or topic that it reads. `query` is None if the source is a topic."""

    stream: str
    name: str
    source: str
    records: int | None
    seconds: float | None
    query: QueryState | None


@dataclass(frozen=True)
class _Stored:
    """A table, and its event times if it is a silver table."""

    state: TableState
    times: EventTimes | None


@dataclass(frozen=True)
class _Filled:
    """A store, and the export that fills it."""

    export: str
    store: StoreState


def steps(states: Sequence[StreamState], width: int) -> Table:
    """Return a table with the backlog of each step in each of its sources."""
    return table(_LAGS, [one for state in states for one in _waiting(state, width)], width)


def stores(states: Sequence[StreamState], width: int) -> Table:
    """Return a table with the state of each store that each export fills."""
    filled = [_Filled(query.name, one) for state in states for query in state.queries for one in query.stores]
    return table(_STORES, filled, width)


def tables(states: Sequence[StreamState], width: int) -> Table:
    """Return a table with the version and size of each lake table."""
    stored = [
        _Stored(one, next((times for times in state.event_times if times.table == one.name), None))
        for state in states
        for one in state.tables
    ]
    return table(_TABLES, stored, width)


def _waiting(state: StreamState, width: int) -> Iterator[_Waiting]:
    """Yield a stream's backlogs. A topic's backlog is shown per partition if the terminal is wide enough."""
    queries = {query.name: query for query in state.queries}
    for topic in dict.fromkeys(lag.topic for lag in state.partitions):
        lags = [lag for lag in state.partitions if lag.topic == topic]
        if width >= _WIDE:
            for lag in lags:
                yield _Waiting(
                    state.name, "bronze", f"{topic} {lag.partition}", lag.records, lag.seconds, None
                )
            continue
        known = [lag.records for lag in lags if lag.records is not None]
        ages = [lag.seconds for lag in lags if lag.seconds is not None]
        is_known = len(known) == len(lags)
        seconds = max(ages, default=None) if len(ages) == len(lags) else None
        yield _Waiting(
            state.name, f"bronze ({topic})", topic, sum(known) if is_known else None, seconds, None
        )
    for one in state.layers:
        is_only = sum(other.query == one.query for other in state.layers) == 1
        name = one.query if is_only or width >= _WIDE else f"{one.query} ({one.source.partition('.')[2]})"
        yield _Waiting(state.name, name, one.source, one.records, one.seconds, queries[one.query])


def _records(one: _Waiting) -> Text:
    return Text(number(one.records), style="" if one.records == 0 else "yellow")


_LAGS: tuple[Column[_Waiting], ...] = (
    Column("stream", lambda one: one.stream, _FULL),
    Column("waits for", lambda one: one.name),
    Column("source", lambda one: one.source, _WIDE),
    Column("records", _records, is_number=True),
    Column("oldest", lambda one: "?" if one.seconds is None else told_s(one.seconds), is_number=True),
    Column("version", lambda one: "" if one.query is None else number(one.query.done), _WIDE, is_number=True),
    Column("done at", lambda one: "" if one.query is None else clock(one.query.done_at), _USUAL),
)
_STORES: tuple[Column[_Filled], ...] = (
    Column("export", lambda one: one.export),
    Column("store", lambda one: one.store.name),
    Column("state", lambda one: Text(one.store.word, style="" if one.store.word == "well" else "yellow")),
    Column("since", lambda one: clock(one.store.since), _USUAL),
)
_TABLES: tuple[Column[_Stored], ...] = (
    Column("table", lambda one: one.state.name),
    Column("version", lambda one: number(one.state.version), is_number=True),
    Column("committed", lambda one: clock(one.state.committed_at), _USUAL),
    Column("rows", lambda one: number(one.state.rows), is_number=True),
    Column("files", lambda one: number(one.state.files), is_number=True),
    Column("bytes", lambda one: number(one.state.size_bytes), _WIDE, is_number=True),
    Column("watermark", lambda one: "" if one.times is None else clock(one.times.watermark), _WIDE),
)
