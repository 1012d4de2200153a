"""Rules applied to facts: what fires, and what has resolved. Pure.

            so      so      so      not so   unknown   not so
        ────●───────●───────●───────●────────●─────────●────
            pending         firing  resolved           (for_s = two ticks)

An alert is a rule with labels. It becomes pending when its condition is first true, and fires once that has
lasted `for_s` without interruption. It resolves once when the condition is no longer true, or when its labels
or its rule are gone. Unknown values change nothing. Its id is made of the rule, the labels and the time when
the condition became true, which the state keeps: whoever continues from a state gives the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from lakehouse.alerts.rules import Rule

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""

Key = tuple[str, Labels]
"""An alert: its rule's name and its labels."""


class AlertStatus(StrEnum):
    """The content of a notification."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True)
class Judged:
    """A rule's finding for one thing: whether its condition is true, null if unknown, and in words."""

    labels: Labels
    is_so: bool | None
    what: str
    value: float | None = None


@dataclass(frozen=True)
class Alert:
    """A pending or firing alert: since when its condition has been true (UTC), and whether it fires."""

    rule: str
    labels: Labels
    since: datetime
    fires: bool
    severity: str
    what: str

    @property
    def key(self) -> Key:
        """Its identity among alerts of the same time."""
        return self.rule, self.labels

    @property
    def id(self) -> str:
        """The same for firing and resolved; another one each time that the alert fires anew."""
        parts = [self.rule, self.labels, self.since.isoformat()]
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:32]


State = Mapping[Key, Alert]


@dataclass(frozen=True)
class Notification:
    """An alert that began to fire, or resolved, at a time, UTC."""

    alert: Alert
    status: AlertStatus
    at: datetime
    value: float | None = None

    @property
    def id(self) -> str:
        """Unique for each notification; a repetition has the same id."""
        return f"{self.alert.id}-{self.status.value}"


def evaluate(
    rules: Sequence[Rule], judged: Mapping[str, Sequence[Judged] | None], state: State, now: datetime
) -> tuple[dict[Key, Alert], list[Notification]]:
    """Return the state after `now` and the notifications, resolved alerts first.

    `judged` is what each rule found, by its name; null where nothing can be known. If a clock goes backwards,
    nothing fires early.
    """
    after: dict[Key, Alert] = {}
    resolved, fired = list[Notification](), list[Notification]()
    known = {rule.name for rule in rules}
    for alert in state.values():
        if alert.rule not in known and alert.fires:
            gone = replace(alert, what="its rule is gone")
            resolved.append(Notification(gone, AlertStatus.RESOLVED, now))
    for rule in rules:
        before = {key: alert for key, alert in state.items() if key[0] == rule.name}
        found = judged.get(rule.name)
        if found is None:
            after |= before
            continue
        for one in found:
            previous = before.pop((rule.name, one.labels), None)
            current, told = _step(rule, one, previous, now)
            if current is not None:
                after[current.key] = current
            if told is not None:
                (fired if told.status is AlertStatus.FIRING else resolved).append(told)
        for alert in before.values():
            if alert.fires:
                gone = replace(alert, what="there is nothing left to judge")
                resolved.append(Notification(gone, AlertStatus.RESOLVED, now))
    return after, [*resolved, *fired]


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


def as_message(one: Notification) -> dict[str, object]:
    """Return a notification as it is sent: times are ISO 8601 in UTC; `event_id` identifies repetitions."""
    return {
        "event_id": one.id,
        "alert_id": one.alert.id,
        "status": one.status.value,
        "rule": one.alert.rule,
        "severity": one.alert.severity,
        "labels": dict(one.alert.labels),
        "what": one.alert.what,
        "value": one.value,
        "since": _iso(one.alert.since),
        "at": _iso(one.at),
    }


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def state_as_json(alerts: Sequence[Alert]) -> str:
    """Return alerts as text for `state_from_json`."""
    rows = [
        [one.rule, list(one.labels), one.since.isoformat(), one.fires, one.severity, one.what]
        for one in alerts
    ]
    return json.dumps(rows, ensure_ascii=False)


def state_from_json(text: str) -> dict[Key, Alert]:
    """Return the alerts in such a text."""
    found = (
        Alert(
            rule,
            tuple((name, value) for name, value in labels),
            datetime.fromisoformat(since),
            fires,
            severity,
            what,
        )
        for rule, labels, since, fires, severity, what in json.loads(text)
    )
    return {one.key: one for one in found}
