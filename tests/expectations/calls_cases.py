"""Call records that meet their suite, and changes that each break one expectation."""

from __future__ import annotations

from tests.expectations.lakes import LIMITS, Case, TinyLake, at, later, text

_VIEW = "gold_call_records"
_PAIR = {"user1": text("ann"), "user2": text("bob")}
_CLOSED = {
    **_PAIR,
    "ts": at("11:40:00"),
    "analytics": text("{}"),
    "analytics_events": "1",
    "metrics_events": "0",
    "last_event_time": at("11:40:00"),
    "status": text("closed"),
    "closed_at": at("11:44:01"),
    "was_closed": "true",
}
_OPEN = {
    **_PAIR,
    "ts": at("11:58:00"),
    "metrics": text("7"),
    "analytics_events": "1",
    "metrics_events": "2",
    "last_event_time": at("11:59:00"),
    "status": text("open"),
    "was_closed": "false",
}


def _changed(**change: str) -> TinyLake:
    return {_VIEW: [{**_CLOSED, **change}, _OPEN]}


CASES = {
    "gold.call_records": Case(
        good={
            _VIEW: [_CLOSED, _OPEN],
            "silver_call_analytics": [{**_PAIR, "event_time": at("11:40:00")}],
            "silver_call_metrics": [{**_PAIR, "event_time": at("11:58:00")}],
            "limits": [LIMITS],
        },
        bad={
            "keys are unique": {_VIEW: [_OPEN, _OPEN]},
            "required columns have values": _changed(was_closed="NULL"),
            "calls are open or closed": _changed(status=text("ringing")),
            "closed_at is null if and only if the call is open": _changed(closed_at="NULL"),
            "calls close after their last event": _changed(closed_at=at("11:40:00")),
            "every call has an event": _changed(analytics_events="0", analytics="NULL"),
            "payloads come from events on their side": _changed(metrics=text("7")),
            "calls begin before they end": _changed(last_event_time=at("11:39:59")),
            "every call begins with an event in silver": {
                "silver_call_metrics": [{**_PAIR, "event_time": at("11:58:00.000001")}]
            },
            "the newest row is recent": later(),
        },
    )
}
