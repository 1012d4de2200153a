"""Derive the health of each stream and the state of each store, and the backlogs of all streams. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakehouse.common.errors import StoreWord
from lakehouse.common.quantities import roughly_told_s
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.progress.sent import Lacking
from lakehouse.operations.telemetry.values import (
    Backlog,
    LayerLag,
    PartitionLag,
    QueryRun,
    QueryState,
    Refused,
    StreamGate,
    StreamState,
)
from lakehouse.operations.telemetry.words import Health, StoreState, Word

_ORDER = tuple(Word)


def health_of(
    partitions: Sequence[PartitionLag],
    layers: Sequence[LayerLag],
    queries: Sequence[QueryState],
    *,
    gate: StreamGate | None,
    newest_event: datetime | None,
    unrun: Mapping[str, datetime | None],
    now: datetime,
    lag_limit: timedelta,
    fresh: timedelta,
    refused: Sequence[Refused] = (),
    failing: Sequence[QueryRun] = (),
) -> Health:
    """Return a stream's health: the worst word that applies.

    `unrun` contains the layers that no process runs, and the time when each last ran (None if unknown). A
    stream is behind if a record has waited longer than `lag_limit`, or a store lacks rows that other stores
    contain. A stream is stale if its newest event is older than `fresh`. Rows held back by a closed gate do
    not count as waiting. If dead letters are open, `refused` contains the latest reports about the records
    that silver refused. `failing` contains the queries that currently fail.
    """
    is_held = gate is not None and not gate.is_open
    layers = [lag for lag in layers if lag.layer != "export" or not is_held]
    found = list[Health]()
    for backlog in _backlogs(partitions, layers, queries, unrun):
        found += _unread(backlog, unrun, now, lag_limit)
    found += _hidden(partitions, now, lag_limit)
    found += [_lacking(query, one) for query in queries for one in query.stores if one.lacks_rows]
    if gate is not None and not gate.is_open:
        found.append(Health(Word.BLOCKED, f"gate closed: {'; '.join(gate.reasons)}", gate.changed_at))
    found += [_refusing(one) for one in refused if one.is_over]
    found += [Health(Word.FAILING, one.failure, one.failed_at) for one in failing]
    if newest_event is None:
        found.append(Health(Word.EMPTY, "nothing has been accepted yet"))
    elif now - newest_event > fresh:
        since = newest_event + fresh
        found.append(Health(Word.STALE, f"the newest event is from {newest_event:%F %T} UTC", since))
    is_done = not any(one.records or one.open_transaction for one in partitions)
    is_done = is_done and not any(one.records for one in layers)
    well = f"no record has waited longer than {lag_limit.total_seconds():,.0f} s"
    found.append(Health(Word.WELL, "every record has been processed" if is_done else well))
    worst = max(found, key=lambda one: _ORDER.index(one.word))
    if unrun and worst.word in (Word.WELL, Word.EMPTY, Word.STALE):
        return _unrun(worst, unrun, queries, is_done=is_done)
    return worst


def store_state(
    name: str,
    lag: LayerLag,
    lacking: Lacking | None,
    *,
    away: str | None,
    is_held: bool,
    is_run: bool,
    now: datetime,
    lag_limit: timedelta,
) -> StoreState:
    """Return the state of a store that an export fills.

    `lag` is the export's backlog, and `lacking` what the export has noted about the store. `away` is the
    reason why an observer cannot reach the store, if it has tried. With `is_held`, the gate holds rows back.
    """
    if away is not None:
        since = lacking.since if lacking is not None and lacking.word is StoreWord.AWAY else None
        return StoreState(name, StoreWord.AWAY, away, since, lacks_rows=lacking is not None)
    if lacking is not None:
        last = "" if is_run else f"; no process runs {lag.query}, so this is from its last attempt"
        return StoreState(name, lacking.word, f"{lacking.reason}{last}", lacking.since, lacks_rows=True)
    if is_held:
        return StoreState(name, StoreWord.WELL, "the gate is closed and holds rows back")
    if lag.records is None or (lag.records and lag.seconds is None):
        return StoreState(name, StoreWord.UNKNOWN, f"it is unknown how long rows have waited: {lag.reason}")
    waited = timedelta(seconds=lag.seconds or 0.0)
    if lag.records and waited > lag_limit:
        wait = "1 row waits" if lag.records == 1 else f"{lag.records:,} rows wait"
        reason = f"{wait} for {lag.query}, the oldest since {now - waited:%F %T} UTC"
        return StoreState(name, StoreWord.BEHIND, reason, now - waited)
    well = f"no row has waited longer than {lag_limit.total_seconds():,.0f} s"
    return StoreState(name, StoreWord.WELL, well if lag.records else "every row has been sent")


def worst_first(states: Iterable[StreamState]) -> list[StreamState]:
    """Sort streams by health, worst first, and then by how long this health has lasted, longest first."""
    return sorted(states, key=_badness)


def backlogs_of(state: StreamState) -> tuple[Backlog, ...]:
    """Return the backlog of each of a stream's layers, in layer order.

    If a layer could not be observed, its backlog is unknown. If the stream's state could not be determined,
    there are no backlogs.
    """
    lags: list[tuple[str, Sequence[PartitionLag | LayerLag]]] = [("bronze", state.partitions)]
    lags += [(layer, [one for one in state.layers if one.layer == layer]) for layer in LAYERS[1:]]
    layers = {query.layer for query in state.queries}
    return tuple(_backlog(layer, found) for layer, found in lags if found or layer in layers)


def waiting_of(state: StreamState) -> Backlog | None:
    """Return the backlog of the layer whose oldest record has waited for the longest time.

    Records of unknown age count as the oldest. If nothing waits, the result has 0 records. The result is None
    if no record is known to wait, but some backlog is unknown.
    """
    backlogs = backlogs_of(state)
    known = [one for one in backlogs if one.records is not None]
    longest = max(known, key=_length, default=None)
    is_known = len(known) == len(backlogs)
    return longest if longest is not None and (longest.records or is_known) else None


def summary_of(states: Sequence[StreamState]) -> str:
    """Return a one-sentence summary: unhealthy streams, waiting records, and the longest wait.

        1 of 4 streams is stopped, 2 are behind; 13,500 records wait, the oldest for 13 min

    The number of records is the sum over the streams' longest-waiting backlogs (`waiting_of`).
    """
    if not states:
        return "There are no streams"
    counts = Counter(state.health.word for state in states)
    told = [word for word in reversed(_ORDER[1:]) if counts[word]] or [Word.WELL]
    words = [f"{counts[word]} {'is' if counts[word] == 1 else 'are'} {word}" for word in told]
    number, _, rest = words[0].partition(" ")
    of = "1 stream" if len(states) == 1 else f"{len(states)} streams"
    return f"{number} of {of} {', '.join([rest, *words[1:]])}; {_all_waiting(states)}"


def _badness(state: StreamState) -> tuple[int, bool, float]:
    since = state.health.since
    return -_ORDER.index(state.health.word), since is None, 0.0 if since is None else since.timestamp()


def _backlog(layer: str, lags: Sequence[PartitionLag | LayerLag]) -> Backlog:
    records = [one.records for one in lags if one.records is not None]
    if not lags or len(records) < len(lags):
        return Backlog(layer, None, None)
    waiting = [one for one in lags if one.records]
    ages = [one.seconds for one in waiting if one.seconds is not None]
    seconds = max(ages, default=0.0) if len(ages) == len(waiting) else None
    return Backlog(layer, sum(records), seconds)


def _length(backlog: Backlog) -> tuple[bool, float]:
    return bool(backlog.records), math.inf if backlog.seconds is None else backlog.seconds


def _all_waiting(states: Sequence[StreamState]) -> str:
    """Return a phrase that says how many records wait, and how many streams have an unknown backlog."""
    backlogs = [backlogs_of(state) for state in states]
    uncounted = sum(not of or any(one.records is None for one in of) for of in backlogs)
    unknown = f"the backlog of {uncounted} {'stream' if uncounted == 1 else 'streams'} is unknown"
    waiting = [one for one in map(waiting_of, states) if one is not None and one.records]
    count = sum(one.records or 0 for one in waiting)
    if count == 0:
        return unknown if uncounted else "no record waits"
    least = "at least " if uncounted else ""
    told = f"{least}{count:,} {'record waits' if count == 1 else 'records wait'}, {_oldest(waiting)}"
    return f"{told}; {unknown}" if uncounted else told


def _oldest(waiting: Sequence[Backlog]) -> str:
    ages = [one.seconds for one in waiting if one.seconds is not None]
    if not ages:
        return "for an unknown time"
    return f"the oldest for {'' if len(ages) == len(waiting) else 'at least '}{roughly_told_s(max(ages))}"


def _refusing(refused: Refused) -> Health:
    of = f"{refused.refused:,} of {refused.judged:,} records of {refused.table} were refused"
    causes = f": {', '.join(refused.causes)}" if refused.causes else ""
    return Health(Word.REFUSING, f"{of}, more than {100 * refused.limit:.4g} %{causes}", refused.at)


def _unrun(
    health: Health, unrun: Mapping[str, datetime | None], queries: Sequence[QueryState], *, is_done: bool
) -> Health:
    """Return the health of a stream if nothing waits for the layers that no process runs.

    If `is_done`, nothing waits for any layer.
    """
    runs_nothing = {query.layer for query in queries} <= unrun.keys()
    nobody = f"no process runs {'the stream' if runs_nothing else ', '.join(unrun)}"
    last = max((at for at in unrun.values() if at is not None), default=None)
    if health.word is Word.WELL and (is_done or runs_nothing):
        return Health(Word.IDLE, f"{health.reason}; {nobody}", last, is_unrun=True)
    return replace(health, reason=f"{health.reason}; {nobody}{_last_active(last)}", is_unrun=True)


def _last_active(at: datetime | None) -> str:
    # A killed process records no stop. The time is then that of its last micro-batch.
    return "" if at is None else f" (last active at {at:%F %T} UTC)"


@dataclass(frozen=True)
class _Backlog:
    """The records of topics or tables that a layer or query, the `reader`, has not read yet.

    `last` is the time of the reader's last micro-batch, or None if there was none.
    """

    layer: str
    reader: str
    lags: Sequence[PartitionLag | LayerLag]
    last: datetime | None

    def __str__(self) -> str:
        waiting = Counter[str]()
        for one in self.lags:
            waiting[one.topic if isinstance(one, PartitionLag) else one.source] += one.records or 0
        parts = {source: count for source, count in waiting.items() if count}
        of = f" of {next(iter(parts))}" if len(parts) == 1 else ""
        each = ", ".join(f"{count:,} of {source}" for source, count in parts.items())
        unit, count = "record" if self.layer == "bronze" else "row", waiting.total()
        waits = f"{unit}{of} waits" if count == 1 else f"{unit}s{of} wait"
        least = "at least " if any(one.records is None for one in self.lags) else ""
        return f"{least}{count:,} {waits} for {self.reader}{'' if of else f' ({each})'}"


def _backlogs(
    partitions: Sequence[PartitionLag],
    layers: Sequence[LayerLag],
    queries: Sequence[QueryState],
    unrun: Mapping[str, datetime | None],
) -> Iterator[_Backlog]:
    """Yield the backlogs of bronze, of each layer that no process runs, and of each other query."""
    landed = _last([query for query in queries if query.layer == "bronze"])
    yield _Backlog("bronze", "bronze", partitions, landed)
    for layer, reader in dict.fromkeys((one.layer, _reader(one, unrun)) for one in layers):
        lags = [one for one in layers if _reader(one, unrun) == reader]
        yield _Backlog(layer, reader, lags, _last([query for query in queries if query.name == reader]))


def _reader(lag: LayerLag, unrun: Mapping[str, datetime | None]) -> str:
    return lag.layer if lag.layer in unrun else lag.query


def _unread(
    backlog: _Backlog, unrun: Mapping[str, datetime | None], now: datetime, limit: timedelta
) -> Iterator[Health]:
    """Yield the health that a backlog implies, or nothing if no record has waited too long."""
    uncounted = next((one for one in backlog.lags if one.records is None), None)
    if uncounted is not None:
        name = uncounted.topic if isinstance(uncounted, PartitionLag) else uncounted.query
        yield Health(Word.UNKNOWN, f"{name}: {uncounted.reason}")
    waiting = [one for one in backlog.lags if one.records]
    if not waiting:
        return
    ages = [one.seconds for one in waiting if one.seconds is not None]
    oldest = now - timedelta(seconds=max(ages)) if ages else None
    undated = next((one for one in waiting if one.seconds is None), None)
    if backlog.layer in unrun:
        yield _stopped(backlog, unrun[backlog.layer], oldest if undated is None else None)
    elif oldest is not None and now - oldest > limit:
        yield _waiting(backlog, oldest, now, limit)
    elif undated is not None:
        yield Health(Word.UNKNOWN, f"{backlog}; their age is unknown: {undated.reason}")


def _hidden(partitions: Sequence[PartitionLag], now: datetime, limit: timedelta) -> Iterator[Health]:
    """Yield the health that each topic's open transactions imply, or nothing if all of them are recent."""
    for topic in dict.fromkeys(one.topic for one in partitions):
        found = (one.open_transaction for one in partitions if one.topic == topic)
        held = [one for one in found if one is not None]
        first = min(held, key=lambda one: one.since, default=None)
        if first is None or now - first.since <= limit:
            continue
        hidden = f"up to {sum(one.offsets for one in held):,} records of {topic}"
        what = f"an open transaction of producer {first.producer} has hidden {hidden}"
        yield Health(Word.BEHIND, f"{what} since {first.since:%F %T} UTC", first.since)


def _lacking(query: QueryState, store: StoreState) -> Health:
    """Return the health of a stream when a store lacks rows of an export."""
    what = f"{store.name} lacks rows of {query.name} because it is {store.word}: {store.reason}"
    return Health(Word.BEHIND, what, store.since)


def _last(queries: Sequence[QueryState]) -> datetime | None:
    return max((one.done_at for one in queries if one.done_at is not None), default=None)


def _stopped(backlog: _Backlog, last: datetime | None, oldest: datetime | None) -> Health:
    """Return the health of a stream whose records wait for a layer that no process has run since `last`."""
    waited = "" if oldest is None else f"; the oldest has waited since {oldest:%F %T} UTC"
    since = max((at for at in (last, oldest) if at is not None), default=None)
    reason = f"{backlog}; no process runs it{_last_active(last)}{waited}"
    return Health(Word.STOPPED, reason, since, is_unrun=True)


def _waiting(backlog: _Backlog, oldest: datetime, now: datetime, limit: timedelta) -> Health:
    """Return the health of a query with an old backlog: behind, or stalled if it has not written recently."""
    last = backlog.last
    if last is None or now - last > limit:
        wrote = "which has written nothing yet" if last is None else f"which last wrote at {last:%F %T} UTC"
        return Health(Word.STALLED, f"{backlog}, {wrote}", oldest)
    return Health(Word.BEHIND, f"{backlog}, the oldest since {oldest:%F %T} UTC", oldest)
