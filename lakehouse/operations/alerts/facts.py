"""Evaluate alerting rules against facts about the streams. No I/O.

A fact that is unknown is None. A fact that is known not to exist is omitted.
"""

from __future__ import annotations

import hashlib
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lakehouse.common.errors import StoreWord
from lakehouse.operations.alerts.evaluating import Alert, Judged, Key, Notification, State, evaluate
from lakehouse.operations.alerts.rules import (
    AuditFailedRule,
    AuditOldRule,
    DeadLetterRule,
    FreshnessRule,
    GateRule,
    HealthRule,
    LagRule,
    MetricRule,
    Rule,
    StoreRule,
    StreamRule,
)
from lakehouse.operations.telemetry import Observation, StreamState, Word
from lakehouse.storage.spark.query_errors import what_of

WINDOW = timedelta(minutes=1)
_LONGEST_LABEL = 200
_LONGEST_WHAT = 2_000  # keeps every record within its topic's size limit


@dataclass(frozen=True)
class Window:
    """The value of a metric's statistic for one service in the minute that began at `start` (UTC)."""

    service: str
    start: datetime
    value: float


@dataclass(frozen=True)
class LandedCounts:
    """How many records of a stream landed in a period, and how many became dead letters."""

    records: int
    letters: int


@dataclass(frozen=True)
class Facts:
    """The data that rules are evaluated against, at one point in time.

    `windows` contains the newest windows for each metric rule, keyed by rule name. `landed` contains the
    counts per stream for each dead letter rule, keyed by rule name.
    """

    observation: Observation | None = None
    windows: Mapping[str, Sequence[Window]] = field(default_factory=dict)
    landed: Mapping[str, Mapping[str, LandedCounts]] = field(default_factory=dict)


def step(
    facts: Facts,
    rules: Sequence[Rule],
    state: State,
    now: datetime,
    warn: Callable[[str], None] = lambda _: None,
) -> tuple[dict[Key, Alert], list[Notification]]:
    """Evaluate all rules, and return the alerts at `now` and the notifications to send.

    `warn` is called with a message for each rule that cannot be evaluated.
    """

    def known(rule: Rule) -> list[Judged] | None:
        try:
            return find(rule, facts, now)
        except Exception as error:  # noqa: BLE001 - one failing rule must not affect the others
            warn(f"rule {rule.name} could not be evaluated: {what_of(error)}")
            return None

    return evaluate(rules, {rule.name: known(rule) for rule in rules}, state, now)


def find(rule: Rule, facts: Facts, now: datetime) -> list[Judged] | None:
    """Evaluate one rule, and return its results, or None if the data that it needs is unavailable."""
    if isinstance(rule, MetricRule):
        windows = facts.windows.get(rule.name)
        return None if windows is None else _of_metric(rule, windows, now)
    if facts.observation is None:
        return None
    states = [one for one in facts.observation.streams if rule.stream in (None, one.name)]
    if isinstance(rule, StoreRule):
        return _of_stores(rule, states)
    is_seen = facts.observation.lake_reason is None
    found = (_of_stream(rule, one, facts, now, is_seen=is_seen and one.lake_reason is None) for one in states)
    return [judged for judged in found if judged is not None]


def _of_stream(
    rule: StreamRule,
    state: StreamState,
    facts: Facts,
    now: datetime,
    *,
    is_seen: bool,
) -> Judged | None:
    labels = {"stream": state.name}
    if isinstance(rule, LagRule):
        return _of_lag(rule, state)
    if isinstance(rule, HealthRule):
        return _of_health(rule, state)
    if not is_seen:
        return _judged(labels, None, "the lake cannot be read")
    if isinstance(rule, FreshnessRule):
        return _of_freshness(rule, state)
    if isinstance(rule, DeadLetterRule):
        return _of_letters(rule, state.name, facts)
    return _of_gate(state) if isinstance(rule, GateRule) else _of_audit(rule, state, facts, now)


def _of_health(rule: HealthRule, state: StreamState) -> Judged:
    health = state.health
    what = f"{state.name} is {health.word}{_since(health.since)}: {health.told}"
    # UNKNOWN health leaves the alert unchanged, unless the rule lists UNKNOWN explicitly.
    is_known = health.word is not Word.UNKNOWN or Word.UNKNOWN in rule.words
    return _judged({"stream": state.name}, health.word in rule.words if is_known else None, what)


def _of_stores(rule: StoreRule, states: Sequence[StreamState]) -> list[Judged] | None:
    if not all(state.queries for state in states):  # the state of a stream could not be determined
        return None
    found = []
    for state in states:
        for query in state.queries:
            table = query.name.partition(".")[2]
            for store in query.stores:
                labels = {"stream": state.name, "table": table, "store": store.name}
                what = f"{store.name} of {query.name} is {store.word}{_since(store.since)}: {store.told}"
                is_known = store.word is not StoreWord.UNKNOWN or StoreWord.UNKNOWN in rule.words
                found.append(_judged(labels, store.word in rule.words if is_known else None, what))
    return found


def _since(moment: datetime | None) -> str:
    return "" if moment is None else f" since {moment:%F %T} UTC"


def _of_freshness(rule: FreshnessRule, state: StreamState) -> Judged | None:
    age = state.freshness_s
    if age is None:
        return None
    what = f"the newest event of {state.name} is {age:,.0f} s old"
    return _judged({"stream": state.name}, age > rule.seconds, what, age)


def _of_gate(state: StreamState) -> Judged | None:
    gate = state.gate
    if gate is None:
        return None
    what = "is open" if gate.is_open else f"is closed: {'; '.join(gate.reasons)}"
    return _judged({"stream": state.name}, not gate.is_open, f"the gate of {state.name} {what}")


def _of_lag(rule: LagRule, state: StreamState) -> Judged:
    labels = {"stream": state.name, "layer": rule.layer}
    lags: Iterable[tuple[int | None, float | None]]
    if rule.layer == "bronze":
        lags = [(one.records, one.seconds) for one in state.partitions]
    else:
        lags = [(one.records, one.seconds) for one in state.layers if one.layer == rule.layer]
    found = [records if rule.records is not None else seconds for records, seconds in lags]
    values = [value for value in found if value is not None]
    if not values:
        return _judged(labels, None, "the lag is unknown")
    value = sum(values) if rule.records is not None else max(values)
    limit = rule.records if rule.records is not None else rule.seconds
    is_over = value > (limit or 0)
    if len(values) < len(found) and not is_over:  # the unknown lags may exceed the limit
        return _judged(labels, None, "the lag is only partly known")
    what = (
        f"{value:,.0f} records wait"
        if rule.records is not None
        else f"the oldest record has waited {value:,.0f} s"
    )
    return _judged(labels, is_over, f"{what} for {rule.layer} of {state.name}", value)


def _of_letters(rule: DeadLetterRule, stream: str, facts: Facts) -> Judged | None:
    labels = {"stream": stream}
    landed = facts.landed.get(rule.name, {}).get(stream)
    if landed is None:
        return _judged(labels, None, "the number of landed records is unknown")
    share = landed.letters / landed.records if landed.records else 0.0
    what = f"{landed.letters:,} of {landed.records:,} records of {stream} became dead letters in the last "
    return _judged(labels, share > rule.over, f"{what}{rule.within_s:,.0f} s", share)


def _of_audit(
    rule: AuditFailedRule | AuditOldRule, state: StreamState, facts: Facts, now: datetime
) -> Judged | None:
    labels = {"stream": state.name}
    if facts.observation is None or facts.observation.events_reason is not None:
        return _judged(labels, None, "the audits cannot be read")
    audit = state.audit
    if isinstance(rule, AuditFailedRule):
        if audit is None:
            return None
        found = "was clean" if audit.is_clean else "was not clean"
        return _judged(
            labels, not audit.is_clean, f"the audit of {state.name} at {audit.at:%F %T} UTC {found}"
        )
    if audit is None:
        has_rows = state.newest_event is not None
        return _judged(labels, has_rows, f"{state.name} has never been audited") if has_rows else None
    age = (now - audit.at).total_seconds()
    return _judged(labels, age > rule.seconds, f"the audit of {state.name} is {age:,.0f} s old", age)


def least_of(rule: MetricRule, windows: Sequence[Window], now: datetime) -> dict[str, float]:
    """Return, for each service, the value to compare with the rule's threshold.

    For an upper threshold, the value is the minimum over the rule's last windows. For a lower threshold, it
    is the maximum. Services with a gap in these windows, or without a recent window (`stale_s`), are omitted.
    """
    choose = min if rule.over is not None else max
    return {
        service: choose(one.value for one in last)
        for service, last in _last_of(rule, windows, now).items()
        if _in_a_row(rule, last)
    }


def _last_of(rule: MetricRule, windows: Sequence[Window], now: datetime) -> dict[str, list[Window]]:
    """Return the last windows of each service that has a recent window (`stale_s`), oldest first."""
    by_service, found = defaultdict[str, list[Window]](list), {}
    for one in sorted(windows, key=lambda one: one.start):
        by_service[one.service].append(one)
    for service, series in sorted(by_service.items()):
        last = series[-rule.windows :]
        if now - (last[-1].start + WINDOW) <= timedelta(seconds=rule.stale_s):
            found[service] = last
    return found


def _in_a_row(rule: MetricRule, last: Sequence[Window]) -> bool:
    return len(last) == rule.windows and last[-1].start - last[0].start == WINDOW * (len(last) - 1)


def _of_metric(rule: MetricRule, windows: Sequence[Window], now: datetime) -> list[Judged]:
    threshold = rule.over if rule.over is not None else rule.under or 0.0
    breaks, word = (operator.gt, "over") if rule.over is not None else (operator.lt, "under")
    found = []
    for service, last in _last_of(rule, windows, now).items():
        is_so = _in_a_row(rule, last) and all(breaks(one.value, threshold) for one in last)
        value = last[-1].value
        what = f"{rule.statistic} of {rule.metric} of {service} is {value:g} at {last[-1].start:%F %T} UTC"
        limit = f", {word} {threshold:g} for {rule.windows} windows" if is_so else ""
        found.append(_judged({"service": service, "metric": rule.metric}, is_so, what + limit, value))
    return found


def _judged(labels: Mapping[str, str], is_so: bool | None, what: str, value: float | None = None) -> Judged:  # noqa: FBT001
    short = {name: text if len(text) <= _LONGEST_LABEL else _shortened(text) for name, text in labels.items()}
    what = what if len(what) <= _LONGEST_WHAT else f"{what[:_LONGEST_WHAT]}…"
    return Judged(tuple(sorted(short.items())), is_so, what, value)


def _shortened(text: str) -> str:
    """Shorten a long string to its beginning and a hash, so that different strings remain different."""
    return f"{text[:_LONGEST_LABEL]}… {hashlib.sha256(text.encode()).hexdigest()[:16]}"
