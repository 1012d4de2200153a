"""Windows of transactions that meet their suite, and changes that each break one expectation."""

from __future__ import annotations

from tests.expectations.lakes import LIMITS, Case, Row, TinyLake, at, later, text

_VIEW = "gold_user_transactions_5m"
_FIRST: Row = {
    "user_id": text("u1"),
    "window_start": at("11:50:00"),
    "window_end": at("11:55:00"),
    "total_amount": "0.000000001",
    "count": "1",
}
_SECOND: Row = {**_FIRST, "user_id": text("u2")}


def _changed(**change: str) -> TinyLake:
    return {_VIEW: [{**_FIRST, **change}, _SECOND]}


CASES = {
    "gold.user_transactions_5m": Case(
        good={
            _VIEW: [_FIRST, _SECOND],
            "silver_transactions": [
                {"user_id": text("u1"), "event_time": at("11:50:00")},
                {"user_id": text("u2"), "event_time": at("11:54:59.999999")},
            ],
            "limits": [LIMITS],
        },
        bad={
            "keys are unique": {_VIEW: [_FIRST, _FIRST]},
            "required columns have values": _changed(count="NULL"),
            "windows start at multiples of 300 s": _changed(
                window_start=at("11:51:00"), window_end=at("11:56:00")
            ),
            "windows are 300 s long": _changed(window_end=at("11:54:59")),
            "totals are above zero": _changed(total_amount="0"),
            "every window has a transaction": _changed(count="0"),
            "every window has an event in silver": {
                "silver_transactions": [
                    {"user_id": text("u1"), "event_time": at("11:55:00")},
                    {"user_id": text("u2"), "event_time": at("11:54:59.999999")},
                ]
            },
            "the newest row is recent": later(),
        },
    )
}
