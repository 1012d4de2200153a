"""Derive a stream's health, in one word, from observations. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    found = [
        *(_of_partitions(partitions, queries, unrun, now, lag_limit)),
        *(one for lag in layers if (one := _of_layer(lag, queries, unrun, now, lag_limit)) is not None),
    ]
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


def _of_partitions(
    partitions: Sequence[PartitionLag],
    queries: Sequence[QueryState],
    unrun: Mapping[str, datetime | None],
    now: datetime,
    limit: timedelta,
) -> list[Health]:
    found = []
    for topic in sorted({one.topic for one in partitions}):
        of_topic = [one for one in partitions if one.topic == topic]
        reasons = [one.reason for one in of_topic if one.records is None]
        if reasons:
            found.append(Health(Word.UNKNOWN, f"{topic}: {reasons[0]}"))
            continue
        oldest = timedelta(seconds=max((one.seconds or 0.0 for one in of_topic), default=0.0))
        records = sum(one.records or 0 for one in of_topic)
        what = f"{records:,} records of {topic} wait for bronze"
        if records and "bronze" in unrun:
            found.append(_stopped(what, unrun["bronze"], now - oldest))
        elif oldest > limit:
            last = _last([query for query in queries if query.layer == "bronze"])
            found.append(_waiting(what, last, now - oldest, now, limit))
        elif (of_unknown_age := _of_unknown_age(of_topic)) is not None:
            found.append(Health(Word.UNKNOWN, f"{what}; their age is unknown: {of_unknown_age}"))
        held = [one.open_transaction for one in of_topic if one.open_transaction is not None]
        if held and now - (first := min(held, key=lambda one: one.since)).since > limit:
            hidden = f"up to {sum(one.offsets for one in held):,} records of {topic}"
            what = f"an open transaction of producer {first.producer} has hidden {hidden}"
            found.append(Health(Word.BEHIND, f"{what} since {first.since:%F %T} UTC", first.since))
    return found


def _of_unknown_age(lags: Sequence[PartitionLag | LayerLag]) -> str | None:
    """Return the reason why the backlog's age is unknown, or None if it is known or there is no backlog."""
    return next((str(one.reason) for one in lags if one.records and one.seconds is None), None)


def _of_layer(
    lag: LayerLag,
    queries: Sequence[QueryState],
    unrun: Mapping[str, datetime | None],
    now: datetime,
    limit: timedelta,
) -> Health | None:
    if lag.records is None:
        return Health(Word.UNKNOWN, f"{lag.query}: {lag.reason}")
    oldest = timedelta(seconds=lag.seconds or 0.0)
    what = f"{lag.records:,} rows of {lag.source} wait for {lag.query}"
    if lag.records and lag.layer in unrun:
        return _stopped(what, unrun[lag.layer], now - oldest)
    if (of_unknown_age := _of_unknown_age([lag])) is not None:
        return Health(Word.UNKNOWN, f"{what}; their age is unknown: {of_unknown_age}")
    if not lag.records or oldest <= limit:
        return None
    last = _last([query for query in queries if query.name == lag.query])
    return _waiting(what, last, now - oldest, now, limit)


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
