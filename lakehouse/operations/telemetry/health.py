"""Derive a stream's health, in one word, from observations. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakehouse.operations.telemetry.values import (
    Health,
    LayerLag,
    PartitionLag,
    QueryState,
    Refused,
    StreamGate,
    Word,
)

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
) -> Health:
    """Return a stream's health: the worst word that applies.

    `unrun` contains the layers that no process runs, and the time when each last ran (None if unknown). A
    stream is behind if a record has waited longer than `lag_limit`, or a store lacks rows that other stores
    contain. A stream is stale if its newest event is older than `fresh`. Rows held back by a closed gate do
    not count as waiting. If letters are open, `refused` contains the latest reports of silver's refusals.
    """
    is_held = gate is not None and not gate.is_open
    layers = [lag for lag in layers if lag.layer != "export" or not is_held]
    found = list[Health]()
    for backlog in _backlogs(partitions, layers, queries):
        both = _unread(backlog, unrun, now, lag_limit), _hidden(backlog, now, lag_limit)
        found += [one for one in both if one is not None]
    found += [_lacking(query) for query in queries if query.behind]
    if gate is not None and not gate.is_open:
        found.append(Health(Word.BLOCKED, f"gate closed: {'; '.join(gate.reasons)}", gate.changed_at))
    found += [_refusing(one) for one in refused if one.is_over]
    if newest_event is None:
        found.append(Health(Word.EMPTY, "nothing has been accepted yet"))
    elif now - newest_event > fresh:
        since = newest_event + fresh
        found.append(Health(Word.STALE, f"the newest event is from {newest_event:%F %T} UTC", since))
    worst = max([_well(partitions, layers, lag_limit), *found], key=lambda one: _ORDER.index(one.word))
    if unrun and worst.word in (Word.WELL, Word.EMPTY, Word.STALE):
        return replace(worst, reason=f"{worst.reason}; {_nobody(unrun, queries)}", is_unrun=True)
    return worst


def _refusing(refused: Refused) -> Health:
    of = f"{refused.refused:,} of {refused.judged:,} records of {refused.table} were refused"
    causes = f": {', '.join(refused.causes)}" if refused.causes else ""
    return Health(Word.REFUSING, f"{of}, more than {100 * refused.limit:.4g} %{causes}", refused.at)


def _well(partitions: Sequence[PartitionLag], layers: Sequence[LayerLag], limit: timedelta) -> Health:
    is_waiting = any(one.records or one.open_transaction for one in partitions)
    is_waiting = is_waiting or any(one.records for one in layers)
    within = f"no record has waited longer than {limit.total_seconds():,.0f} s"
    return Health(Word.WELL, within if is_waiting else "every record has been processed")


def _nobody(unrun: Mapping[str, datetime | None], queries: Sequence[QueryState]) -> str:
    """Return a message that names the layers that no process runs, and the time when one last ran."""
    runs_nothing = {query.layer for query in queries} <= unrun.keys()
    what = "it" if runs_nothing else ", ".join(unrun)
    known = [at for at in unrun.values() if at is not None]
    return f"no process has run {what} since {max(known):%F %T} UTC" if known else f"no process runs {what}"


@dataclass(frozen=True)
class _Backlog:
    """What a layer has not read of one topic or table.

    `name` is the topic, or the query that reads the table. `what` describes the records without their number.
    `last` is the time of the layer's or query's last micro-batch, or None if there was none.
    """

    name: str
    layer: str
    what: str
    lags: Sequence[PartitionLag | LayerLag]
    last: datetime | None


def _backlogs(
    partitions: Sequence[PartitionLag], layers: Sequence[LayerLag], queries: Sequence[QueryState]
) -> Iterator[_Backlog]:
    landed = _last([query for query in queries if query.layer == "bronze"])
    for topic in sorted({one.topic for one in partitions}):
        lags = [one for one in partitions if one.topic == topic]
        yield _Backlog(topic, "bronze", f"records of {topic} wait for bronze", lags, landed)
    for lag in layers:
        last = _last([query for query in queries if query.name == lag.query])
        what = f"rows of {lag.source} wait for {lag.query}"
        yield _Backlog(lag.query, lag.layer, what, [lag], last)


def _unread(
    backlog: _Backlog, unrun: Mapping[str, datetime | None], now: datetime, limit: timedelta
) -> Health | None:
    """Return what the backlog's records say about health, or None if they may wait a little longer."""
    uncounted = [one for one in backlog.lags if one.records is None]
    if uncounted:
        return Health(Word.UNKNOWN, f"{backlog.name}: {uncounted[0].reason}")
    waiting = [one for one in backlog.lags if one.records]
    what = f"{sum(one.records or 0 for one in waiting):,} {backlog.what}"
    since = now - timedelta(seconds=max((one.seconds or 0.0 for one in waiting), default=0.0))
    if waiting and backlog.layer in unrun:
        return _stopped(what, unrun[backlog.layer], since)
    if now - since > limit:
        return _waiting(what, backlog.last, since, now, limit)
    of_unknown_age = [one for one in waiting if one.seconds is None]
    if of_unknown_age:
        return Health(Word.UNKNOWN, f"{what}; their age is unknown: {of_unknown_age[0].reason}")
    return None


def _hidden(backlog: _Backlog, now: datetime, limit: timedelta) -> Health | None:
    """Return what a topic's open transactions say about health, or None if all began recently."""
    found = (one.open_transaction for one in backlog.lags if isinstance(one, PartitionLag))
    held = [one for one in found if one is not None]
    first = min(held, key=lambda one: one.since, default=None)
    if first is None or now - first.since <= limit:
        return None
    hidden = f"up to {sum(one.offsets for one in held):,} records of {backlog.name}"
    what = f"an open transaction of producer {first.producer} has hidden {hidden}"
    return Health(Word.BEHIND, f"{what} since {first.since:%F %T} UTC", first.since)


def _lacking(query: QueryState) -> Health:
    """Return the health of an export when some of its stores lack rows."""
    stores, verb = " and ".join(query.behind), "lack" if len(query.behind) > 1 else "lacks"
    what = f"{stores} {verb} rows that {query.name} sent to other stores (unavailable or full)"
    return Health(Word.BEHIND, f"{what}; the export sends them once it can")


def _last(queries: Sequence[QueryState]) -> datetime | None:
    return max((one.done_at for one in queries if one.done_at is not None), default=None)


def _stopped(what: str, unrun_since: datetime | None, waits_since: datetime) -> Health:
    if unrun_since is None:
        return Health(Word.STOPPED, f"{what}, which no process runs", waits_since, is_unrun=True)
    reason = f"{what}, which no process has run since {unrun_since:%F %T} UTC"
    return Health(Word.STOPPED, reason, max(unrun_since, waits_since), is_unrun=True)


def _waiting(what: str, last: datetime | None, since: datetime, now: datetime, limit: timedelta) -> Health:
    """Return the health of a query with an old backlog: behind, or stalled if it has not written recently."""
    if last is None or now - last > limit:
        wrote = "which has written nothing yet" if last is None else f"which last wrote at {last:%F %T} UTC"
        return Health(Word.STALLED, f"{what}, {wrote}", since)
    return Health(Word.BEHIND, f"{what}, the oldest since {since:%F %T} UTC", since)
