"""Convert alerts and notifications to and from JSON. No I/O.

A record is foreign if it is in a topic for alerts but was not written by lakehouse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from lakehouse.operations.alerts.evaluating import Alert, AlertStatus, Key, Labels, Notification


class _Message(BaseModel):
    """The JSON fields of a notification in the alert topic."""

    event_id: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]
    alert_id: str
    status: AlertStatus
    rule: str
    severity: str
    labels: dict[str, str]
    what: str
    value: FiniteFloat | None
    since: AwareDatetime
    at: AwareDatetime


_ALERT = TypeAdapter(tuple[str, Labels, AwareDatetime, bool, str, str])


def as_message(one: Notification) -> dict[str, object]:
    """Return a notification as a JSON-serializable dictionary, with UTC times in ISO 8601 format.

    `event_id` identifies duplicates. Infinite and NaN values become None.
    """
    return {
        "event_id": one.id,
        "alert_id": one.alert.id,
        "status": one.status.value,
        "rule": one.alert.rule,
        "severity": one.alert.severity,
        "labels": dict(one.alert.labels),
        "what": one.alert.what,
        "value": None if one.value is None or not math.isfinite(one.value) else one.value,
        "since": _iso(one.alert.since),
        "at": _iso(one.at),
    }


def message_in(body: bytes | None) -> Mapping[str, Any] | None:
    """Return the notification in a record, with ISO 8601 times, or None if the record is foreign."""
    try:
        found = _Message.model_validate_json(body or b"")
    except ValidationError:
        return None
    times = {"since": found.since.isoformat(), "at": found.at.isoformat()}
    return found.model_dump() | {"status": found.status.value} | times


def key_of(key: Key) -> bytes:
    """Return the Kafka key of the record that stores an alert's state."""
    return json.dumps(key, ensure_ascii=False).encode()


def alert_as_json(alert: Alert) -> bytes:
    """Return an alert's state as JSON that `alert_in` can parse."""
    row = [alert.rule, alert.labels, alert.since.isoformat(), alert.fires, alert.severity, alert.what]
    return json.dumps(row, ensure_ascii=False).encode()


def alert_in(key: bytes | None, body: bytes) -> Alert | None:
    """Return the alert in a state record, or None if the record is foreign."""
    try:
        found = Alert(*_ALERT.validate_json(body))
    except ValidationError:
        return None
    return found if key == key_of(found.key) else None


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
