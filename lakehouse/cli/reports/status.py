"""The `lakehouse status` report, with as many columns as fit in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lakehouse.common.printable import printable
from lakehouse.engine.layers.step import LAYERS
from lakehouse.operations.telemetry import (
    EventTimes,
    Observation,
    QueryState,
    Run,
    StreamState,
    TableState,
    Word,
)

_FULL, _WIDE, _USUAL = 160, 120, 80  # terminal widths at which more columns are shown
_COLOURS = {
    Word.WELL: "green",
    Word.IDLE: "dim",
    Word.EMPTY: "dim",
    Word.STALE: "yellow",
    Word.BEHIND: "yellow",
    Word.REFUSING: "red",
    Word.UNKNOWN: "magenta",
    Word.BLOCKED: "red",
    Word.STALLED: "red",
    Word.STOPPED: "red",
}
_Row = TypeVar("_Row")


@dataclass(frozen=True)
class _Column(Generic[_Row]):
    """A column that is shown if the terminal is at least `from_width` characters wide."""

    heading: str
    text: Callable[[_Row], str | Text]
    from_width: int = 0
    is_number: bool = False


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

    table: TableState
    times: EventTimes | None


def drawn(seen: Observation, alerts_reason: str | None, width: int) -> RenderableType:
    """Return the report for a terminal that is `width` characters wide.

    `alerts_reason` says why alerts are not evaluated, or why that is unknown.
    """
    reasons = [reason for reason in (seen.lake_reason, seen.broker_reason) if reason is not None]
    stored = [
        _Stored(table, next((one for one in state.event_times if one.table == table.name), None))
        for state in seen.streams
        for table in state.tables
    ]
    return Group(
        f"{seen.at:%F %T} UTC",
        *(Text(reason, style="magenta") for reason in reasons),
        *(() if alerts_reason is None else (Text(alerts_reason, style="yellow"),)),
        _table(_HEALTH, seen.streams, width),
        *(_why(seen.streams, width) if width < _FULL else ()),
        *_closed(seen.streams),
        "",
        *_processes(seen.streams, width),
        "",
        _table(_LAGS, [one for state in seen.streams for one in _waiting(state, width)], width),
        "",
        _table(_TABLES, stored, width),
    )


def _why(states: Iterable[StreamState], width: int) -> Iterator[RenderableType]:
    """Yield a line for each stream with the reason for its state."""
    for state in states:
        health = state.health
        since = "" if health.since is None or width >= _USUAL else f" (since {_time(health.since)})"
        text = Text.assemble((f"{state.name}: ", _COLOURS[health.word]), printable(health.reason), since)
        yield Padding(text, (0, 0, 0, 2))


def _closed(states: Iterable[StreamState]) -> Iterator[RenderableType]:
    """Yield a line for each closed gate, even if its stream also has other problems."""
    for state in states:
        if state.gate is not None and not state.gate.is_open:
            what = f"gate of {state.name} closed since {_time(state.gate.changed_at)} UTC: "
            yield Text(printable(what + "; ".join(state.gate.reasons)), style="red")


def _processes(states: Sequence[StreamState], width: int) -> Iterator[RenderableType]:
    runs = {(run.host, run.pid): run for state in states for run in state.runs}
    if not runs:
        yield "no process is running these streams"
        return
    yield _table(_RUNS, list(runs.values()), width)
    failing = {
        one.name: one.error for state in states for run in state.runs for one in run.queries if one.error
    }
    for name, error in failing.items():
        yield Padding(Text.assemble((f"{name} fails: ", "red"), printable(error)), (0, 0, 0, 2))


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


def _table(columns: Sequence[_Column[_Row]], rows: Sequence[_Row], width: int) -> Table:
    shown = [column for column in columns if width >= column.from_width]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in shown:
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(column.text(row) for column in shown))
    return table


def _word(state: StreamState) -> Text:
    return Text(state.health.word.value, style=_COLOURS[state.health.word])


def _gate(state: StreamState) -> str | Text:
    if state.gate is None:
        return ""
    return "open" if state.gate.is_open else Text("closed", style="red")


def _records(one: _Waiting) -> Text:
    return Text(_number(one.records), style="" if one.records == 0 else "yellow")


def _layers(run: Run) -> str:
    return "all layers" if set(run.layers) == set(LAYERS) else ", ".join(run.layers)


def _rows_per_s(run: Run) -> str:
    rates = [one.rows_per_s for one in run.queries if one.rows_per_s is not None]
    return f"{max(rates):,.0f}" if rates else ""


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:,.1f} s"


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%F %T}"


_HEALTH: tuple[_Column[StreamState], ...] = (
    _Column("stream", lambda state: state.name),
    _Column("health", _word),
    _Column("since", lambda state: _time(state.health.since), _USUAL),
    _Column("fresh", lambda state: _seconds(state.freshness_s), is_number=True),
    _Column("letters", lambda state: _number(state.open_letters), is_number=True),
    _Column("gate", _gate),
    _Column("why", lambda state: state.health.reason, _FULL),
)
_RUNS: tuple[_Column[Run], ...] = (
    _Column("process", lambda run: str(run.pid), is_number=True),
    _Column("host", lambda run: run.host, _WIDE),
    _Column("layers", _layers),
    _Column("started", lambda run: _time(run.started_at)),
    _Column("streams", lambda run: ", ".join(run.streams), _WIDE),
    _Column("rows/s", _rows_per_s, _USUAL, is_number=True),
    _Column("telemetry", lambda run: str(run.telemetry_port or ""), _USUAL, is_number=True),
)
_LAGS: tuple[_Column[_Waiting], ...] = (
    _Column("stream", lambda one: one.stream, _FULL),
    _Column("waits for", lambda one: one.name),
    _Column("source", lambda one: one.source, _WIDE),
    _Column("records", _records, is_number=True),
    _Column("seconds", lambda one: _seconds(one.seconds), is_number=True),
    _Column(
        "version", lambda one: "" if one.query is None else _number(one.query.done), _WIDE, is_number=True
    ),
    _Column("done at", lambda one: "" if one.query is None else _time(one.query.done_at), _USUAL),
)
_TABLES: tuple[_Column[_Stored], ...] = (
    _Column("table", lambda one: one.table.name),
    _Column("version", lambda one: _number(one.table.version), is_number=True),
    _Column("committed", lambda one: _time(one.table.committed_at), _USUAL),
    _Column("rows", lambda one: _number(one.table.rows), is_number=True),
    _Column("files", lambda one: _number(one.table.files), is_number=True),
    _Column("bytes", lambda one: _number(one.table.size_bytes), _WIDE, is_number=True),
    _Column("watermark", lambda one: "" if one.times is None else _time(one.times.watermark), _WIDE),
)
