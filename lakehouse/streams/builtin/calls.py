"""calls: call records joined from two topics.

    analyticsTopic ── silver.call_analytics ─┬─ gold.call_records ── outputTopic, Redis
    metricsTopic ──── silver.call_metrics ───┘

Records are {"user1", "user2", "timestamp"?, "analytics"?} and the same with "metrics"; a payload is any JSON
value or null.
"""

from __future__ import annotations

from lakehouse.streams.definition import Stream
from lakehouse.streams.kinds import Records, Side, joined_calls


def make(gap_s: int, grace_s: int) -> Stream:
    """Return the stream: events at most `gap_s` apart are one call; `grace_s` delays its closing."""
    return joined_calls(
        "calls",
        (
            Side(records=Records("analyticsTopic", table="call_analytics"), payload="analytics"),
            Side(records=Records("metricsTopic", table="call_metrics"), payload="metrics"),
        ),
        pair=("user1", "user2"),
        gap_s=gap_s,
        grace_s=grace_s,
        gold="call_records",
        to="outputTopic",
        settings_prefix="call_",
    )
