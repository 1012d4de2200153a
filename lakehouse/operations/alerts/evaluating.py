"""The life cycle of alerts: pending, firing, resolved. No I/O.

            true    true    true    false    unknown   false
        ────●───────●───────●───────●────────●─────────●────
            pending         firing  resolved           (for_s = two ticks)

Each alert belongs to a rule and has a set of labels. It becomes pending when its condition first holds, and
fires once the condition has held for `for_s` seconds without interruption. A firing alert resolves when the
condition no longer holds, or when its labels or its rule disappear. Unknown values change nothing. An alert's
id is derived from its rule, its labels and the time when the condition became true. The state stores this
time, so ids survive a restart.

At most MOST_FIRING alerts per rule fire individually. Thousands of services over a threshold therefore do not
cause thousands of messages. Further alerts remain pending until a firing alert resolves. One additional
alert, without labels, summarizes these pending alerts: "and 3,912 more".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from lakehouse.operations.alerts.rules import Rule

MOST_FIRING = 100

Labels = tuple[tuple[str, str], ...]
"""(name, value) pairs, sorted by name."""

Key = tuple[str, Labels]
"""An alert's identity: its rule's name and its labels."""


class AlertStatus(StrEnum):
    """Whether a notification says that its alert is firing or that it has resolved."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class Judged:
    """The result of evaluating a rule for one set of labels.

    `is_so` says whether the rule's condition holds, or is None if this is unknown.
    """

    labels: Labels
    is_so: bool | None
    what: str
    value: float | None = None


@dataclass(frozen=True)
class Alert:
    """A pending or firing alert. `since` is the time (UTC) when its condition became true."""

    rule: str
    labels: Labels
    since: datetime
    fires: bool
    severity: str
    what: str

    @property
    def key(self) -> Key:
        """The alert's identity among all pending and firing alerts."""
        return self.rule, self.labels

    @property
    def id(self) -> str:
        """The id shared by the firing and resolved notifications. An alert that fires again gets a new id."""
        parts = [self.rule, self.labels, self.since.isoformat()]
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:32]


State = Mapping[Key, Alert]


@dataclass(frozen=True)
class Notification:
    """A notification that an alert is firing or has resolved. `at` is the time of the evaluation (UTC)."""

    alert: Alert
    status: AlertStatus
    at: datetime
    value: float | None = None

    @property
    def id(self) -> str:
        """A unique id that stays the same if the notification is resent."""
        return f"{self.alert.id}-{self.status.value}"


def evaluate(
    rules: Sequence[Rule], judged: Mapping[str, Sequence[Judged] | None], state: State, now: datetime
) -> tuple[dict[Key, Alert], list[Notification]]:
    """Return the alerts at `now`, keyed by identity, and the notifications to send, resolved alerts first.

    `judged` contains each rule's results, keyed by rule name, or None if the rule's data is unavailable. If
    the clock is set back, no alert fires early.
    """
    after: dict[Key, Alert] = {}
    resolved, fired = list[Notification](), list[Notification]()
    known = {rule.name for rule in rules}
    for alert in state.values():
        if alert.rule not in known and alert.fires:
            gone = replace(alert, what="its rule was removed")
            resolved.append(Notification(gone, AlertStatus.RESOLVED, now))
    for rule in rules:
        before = {key: alert for key, alert in state.items() if key[0] == rule.name}
        found = judged.get(rule.name)
        if found is None:
            after |= before
            continue
        standing, told = _of_rule(rule, found, before, now)
        after |= standing
        for one in told:
            (fired if one.status is AlertStatus.FIRING else resolved).append(one)
    return after, [*resolved, *fired]


def _of_rule(
    rule: Rule, found: Sequence[Judged], before: dict[Key, Alert], now: datetime
) -> tuple[dict[Key, Alert], list[Notification]]:
    """Return a rule's alerts at `now`, and their notifications."""
    others = before.pop((rule.name, ()), None)
    after, told, begun = dict[Key, Alert](), list[Notification](), list[Notification]()
    for one in found:
        current, notification = _step(rule, one, before.pop((rule.name, one.labels), None), now)
        if current is not None:
            after[current.key] = current
        if notification is not None:
            (begun if notification.status is AlertStatus.FIRING else told).append(notification)
    for alert in before.values():
        if alert.fires:
            gone = replace(alert, what="no data is left to evaluate")
            told.append(Notification(gone, AlertStatus.RESOLVED, now))
    room = max(0, MOST_FIRING - sum(alert.fires for alert in after.values()) + len(begun))
    begun.sort(key=lambda one: one.alert.since)
    for waiting in begun[room:]:
        after[waiting.alert.key] = replace(waiting.alert, fires=False, what="")
    is_known = all(one.is_so is not None for one in found)
    others, notification = _of_others(rule, len(begun[room:]), others, now, is_known=is_known)
    if others is not None:
        after[others.key] = others
    return after, [*told, *begun[:room], *([] if notification is None else [notification])]


def _of_others(
    rule: Rule, count: int, standing: Alert | None, now: datetime, *, is_known: bool
) -> tuple[Alert | None, Notification | None]:
    """Return the alert that summarizes the `count` alerts beyond the limit, and its notification."""
    if not count:
        if standing is None or not is_known:
            return standing, None
        over = replace(standing, what="no further alerts")
        return None, Notification(over, AlertStatus.RESOLVED, now, 0.0)
    what = f"and {count:,} more: a rule sends at most {MOST_FIRING} alerts individually"
    if standing is not None:
        return replace(standing, what=what), None
    alert = Alert(rule.name, (), now, True, rule.severity.value, what)  # noqa: FBT003
    return alert, Notification(alert, AlertStatus.FIRING, now, float(count))


def _step(
    rule: Rule, found: Judged, previous: Alert | None, now: datetime
) -> tuple[Alert | None, Notification | None]:
    if found.is_so is None:
        return previous, None
    if not found.is_so:
        if previous is None or not previous.fires:
            return None, None
        over = replace(previous, what=found.what)
        return None, Notification(over, AlertStatus.RESOLVED, now, found.value)
    if previous is not None and previous.fires:
        return previous, None
    since = now if previous is None else min(previous.since, now)  # the clock may have been set back
    fires = now - since >= timedelta(seconds=rule.for_s)
    alert = Alert(rule.name, found.labels, since, fires, rule.severity.value, found.what if fires else "")
    return alert, Notification(alert, AlertStatus.FIRING, now, found.value) if fires else None
