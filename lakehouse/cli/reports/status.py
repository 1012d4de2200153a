"""The `lakehouse status` report: a line per stream, worst first, then the problems and the processes.

    2026-11-22 09:00:00 UTC
    stream   health      since  newest         waiting  letters
    calls    stopped  08:47:00  14 min  13,500, 13 min        0
    metrics  well                0.9 s      212, 0.4 s        2
      calls: 13,500 records wait for bronze (6,765 of analyticsTopic, 6,735 of metricsTopic); no process …
      redis is away since 08:47:00 (export.call_records): Redis is unreachable: …
      stopped: Start it: `lakehouse run all` (docs/run.md)
    process 4711 on elsewhere runs all layers of metrics since 08:00:00

With --steps, the tables in `status_steps` follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from lakehouse.cli.reports.columns import Column, clock, number, table
from lakehouse.cli.reports.status_steps import steps, stores, tables
from lakehouse.common.errors import StoreWord
from lakehouse.common.printable import printable
from lakehouse.common.quantities import roughly_told_s, told_s
from lakehouse.common.terminal import Console
from lakehouse.engine.layers import LAYERS
from lakehouse.operations.telemetry import (
    Observation,
    Run,
    StoreState,
    StreamState,
    Word,
    waiting_of,
    worst_first,
)
from lakehouse.operations.telemetry.words import WHAT_TO_DO, WHAT_TO_DO_FOR_A_STORE

_WIDE, _USUAL = 100, 80  # terminal widths from which times are exact, and all columns are shown
_COLOURS = {
    Word.WELL: "green",
    Word.IDLE: "dim",
    Word.EMPTY: "dim",
    Word.STALE: "yellow",
    Word.BEHIND: "yellow",
    Word.REFUSING: "red",
    Word.UNKNOWN: "magenta",
    Word.BLOCKED: "red",
    Word.FAILING: "red",
    Word.STALLED: "red",
    Word.STOPPED: "red",
}
_NAMED = 3  # the maximum number of streams that the line of a process names


def drawn(
    seen: Observation,
    alerts_reason: str | None,
    console: Console,
    *,
    with_steps: bool = False,
    is_live: bool = False,
) -> RenderableType:
    """Return the report for a terminal.

    `alerts_reason` says why alerts are not evaluated, or why that is unknown. A live report shows only as
    many reasons as fit, starting with the worst stream's, and what to do only if it also fits. With
    `with_steps`, the report also shows the backlog of each step, the state of each store and the size of each
    table.
    """
    width, states = console.width, worst_first(seen.streams)
    above = [reason for reason in (seen.lake_reason, seen.broker_reason) if reason is not None]
    top = [
        f"{seen.at:%F %T} UTC",
        *(Text(reason, style="magenta") for reason in above),
        *(() if alerts_reason is None else (Text(alerts_reason, style="yellow"),)),
        table(_columns(states, seen.at, width), states, width),
    ]
    ailing = _ailing(states)
    reasons = [*_reasons(states, above), *_closed(states), *_stores(ailing, states, above, (seen.at, width))]
    advice = [*_advice(states, ailing, above)]
    bottom = [*_processes(states, seen.at, width), *_failing(states)]
    if with_steps:
        bottom += ["", steps(seen.streams, width), "", stores(seen.streams, width)]
        bottom += ["", tables(seen.streams, width)]
    elif is_live:
        reasons = _fitting(reasons, console.height - _lines(Group(*top, *bottom), console), console)
        room = console.height - _lines(Group(*top, *reasons, *bottom), console)
        advice = advice if _lines(Group(*advice), console) <= room else []
    return Group(*top, *reasons, *advice, *bottom)


def _columns(states: Sequence[StreamState], at: datetime, width: int) -> list[Column[StreamState]]:
    is_wide = width >= _WIDE
    columns = [
        Column[StreamState]("stream", lambda state: state.name),
        Column[StreamState]("health", _word),
        Column[StreamState]("since", lambda state: _moment(state.health.since, at, width), is_number=True),
        Column[StreamState](
            "newest event" if is_wide else "newest",
            lambda state: _age(state.freshness_s, width),
            _USUAL,
            is_number=True,
        ),
        Column[StreamState]("waiting", lambda state: _waiting(state, width), is_number=True),
        Column[StreamState]("letters", lambda state: number(state.open_letters), _USUAL, is_number=True),
    ]
    has_gate = any(state.gate is not None for state in states)
    return [*columns, Column[StreamState]("gate", _gate, _USUAL)] if has_gate else columns


def _word(state: StreamState) -> Text:
    return Text(state.health.word.value, style=_COLOURS[state.health.word])


def _moment(moment: datetime | None, at: datetime, width: int) -> str:
    """Format a time. On a narrow terminal, omit the year, or the whole date if it is today."""
    if moment is None or width >= _WIDE:
        return clock(moment)
    return f"{moment:%T}" if moment.date() == at.date() else f"{moment:%m-%d %H:%M}"


def _age(seconds: float | None, width: int) -> str:
    if seconds is None:
        return "?"
    return told_s(seconds) if width >= _WIDE else roughly_told_s(seconds)


def _waiting(state: StreamState, width: int) -> Text:
    """Return the backlog of the layer with the longest wait, and how long its oldest record has waited."""
    longest = waiting_of(state)
    if longest is None:
        return Text("?", style="yellow")
    if not longest.records:
        return Text("0")
    return Text(f"{number(longest.records)}, {_age(longest.seconds, width)}", style="yellow")


def _gate(state: StreamState) -> str | Text:
    if state.gate is None:
        return ""
    return "open" if state.gate.is_open else Text("closed", style="red")


def _reasons(states: Iterable[StreamState], above: Sequence[str]) -> Iterator[RenderableType]:
    """Yield a line for each reason why streams are neither well nor idle, unless `above` contains it."""
    names = dict[tuple[Word, str], list[str]]()
    for state in states:
        word, reason = state.health.word, state.health.reason
        is_told = any(reason in one or reason.endswith(one) for one in above)
        if word not in (Word.WELL, Word.IDLE) and not is_told:
            names.setdefault((word, reason), []).append(state.name)
    for (word, reason), of in names.items():
        yield _indented(Text.assemble((f"{', '.join(of)}: ", _COLOURS[word]), printable(reason)))


def _closed(states: Iterable[StreamState]) -> Iterator[RenderableType]:
    """Yield a line for each closed gate, if its stream has a worse problem."""
    for state in states:
        gate = state.gate
        if gate is not None and not gate.is_open and state.health.word is not Word.BLOCKED:
            what = f"gate of {state.name} closed since {clock(gate.changed_at)} UTC: "
            yield _indented(Text(printable(what + "; ".join(gate.reasons)), style="red"))


def _ailing(states: Iterable[StreamState]) -> list[tuple[StoreState, list[str]]]:
    """Return the stores that are away or lack rows, with the names of the exports that fill them.

    If rows only wait for an export, the health or the backlog of its stream says so.
    """
    found = dict[tuple[str, StoreWord, str], tuple[StoreState, list[str]]]()
    for query in (query for state in states for query in state.queries):
        for one in query.stores:
            if one.lacks_rows or one.word is StoreWord.AWAY:
                found.setdefault((one.name, one.word, one.reason), (one, []))[1].append(query.name)
    return list(found.values())


def _stores(
    ailing: Iterable[tuple[StoreState, Sequence[str]]],
    states: Sequence[StreamState],
    above: Sequence[str],
    at: tuple[datetime, int],
) -> Iterator[RenderableType]:
    """Yield a line for each ailing store, unless `above` or the health of a stream tells its reason."""
    told = [*above, *(state.health.reason for state in states)]
    for one, queries in ailing:
        if not any(one.reason in said for said in told):
            since = "" if one.since is None else f" since {_moment(one.since, *at)}"
            what = f"{one.name} is {one.word}{since} ({', '.join(queries)}): "
            yield _indented(Text.assemble((what, "yellow"), printable(one.reason)))


def _advice(
    states: Sequence[StreamState], ailing: Iterable[tuple[StoreState, object]], above: Sequence[str]
) -> Iterator[RenderableType]:
    """Yield what to do about each word that is shown, once."""
    words = {state.health.word for state in states} - {Word.WELL, Word.IDLE}
    words |= {Word.UNKNOWN} if above else set()
    for word in sorted(words, key=list(Word).index, reverse=True):
        yield _indented(Text.assemble((f"{word}: ", _COLOURS[word]), WHAT_TO_DO[word]))
    for store in sorted({one.word for one, _ in ailing}, key=list(StoreWord).index, reverse=True):
        yield _indented(Text.assemble((f"{store} (store): ", "yellow"), WHAT_TO_DO_FOR_A_STORE[store]))


def _processes(states: Sequence[StreamState], at: datetime, width: int) -> Iterator[RenderableType]:
    found = dict[tuple[str, int], list[Run]]()  # a process appears in the state of each stream that it runs
    for state in states:
        for run in state.runs:
            found.setdefault((run.host, run.pid), []).append(run)
    if not found:
        yield "no process is running these streams"
    for of_streams in found.values():
        run = of_streams[0]
        rates = [one.rows_per_s for mine in of_streams for one in mine.queries if one.rows_per_s is not None]
        more = [f"{max(rates):,.0f} rows/s"] if rates else []
        more += [] if run.telemetry_port is None else [f"telemetry on port {run.telemetry_port}"]
        since = f"since {_moment(run.started_at, at, width)}"
        said = f"process {run.pid} on {run.host} runs {_layers(run)}{_streams(run, states)} {since}"
        yield Text(", ".join([said, *more]), no_wrap=True, overflow="ellipsis")


def _layers(run: Run) -> str:
    return "all layers" if set(run.layers) == set(LAYERS) else ", ".join(run.layers)


def _streams(run: Run, states: Sequence[StreamState]) -> str:
    """Return the names of the streams that a process runs, or nothing if it runs all of them."""
    names = [state.name for state in states if state.name in run.streams]
    if len(names) == len(states):
        return ""
    return f" of {', '.join(names) if len(names) <= _NAMED else f'{len(names)} streams'}"


def _failing(states: Sequence[StreamState]) -> Iterator[RenderableType]:
    """Yield a line for each failing step, unless it is the reason for its stream's health."""
    told = {state.health.reason for state in states}
    failing = {one.name: one for state in states for run in state.runs for one in run.queries if one.error}
    for one in failing.values():
        if one.failure not in told:
            yield _indented(Text.assemble((f"{one.name} fails: ", "red"), printable(one.error or "")))


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))


def _fitting(lines: list[RenderableType], room: int, console: Console) -> list[RenderableType]:
    """Return the lines that fit into `room` terminal rows, and a line that counts the others, if any."""
    heights = [_lines(one, console) for one in lines]
    if sum(heights) <= room:
        return lines
    shown = next((n for n in range(len(lines), 0, -1) if sum(heights[:n]) < room), 0)
    left = len(lines) - shown
    more = f"{left} more {'reason' if left == 1 else 'reasons'}: `lakehouse status --once` shows all"
    return [*lines[:shown], _indented(Text(more, style="dim"))]


def _lines(shown: RenderableType, console: Console) -> int:
    return len(console.render_lines(shown, pad=False))
