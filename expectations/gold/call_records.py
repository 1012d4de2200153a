"""The suite for gold.call_records: calls between two users, which are open or closed."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from lakehouse.streams.suites import fresh, make_suite, no_rows, required, rows, unique

KEYS = ("user1", "user2", "ts")
SIDES = {"call_analytics": "analytics", "call_metrics": "metrics"}
"""The payload column for each silver table's events."""
COUNTS = tuple(f"{side}_events" for side in SIDES.values())


def suite() -> ExpectationSuite:
    """Return the suite for gold.call_records."""
    events = " UNION ALL ".join(
        f"SELECT user1, user2, event_time AS ts FROM silver_{table}" for table in SIDES
    )
    query = f"SELECT user1, user2, ts FROM {{batch}} LEFT ANTI JOIN ({events}) USING (user1, user2, ts)"
    return make_suite(
        "gold.call_records",
        unique(KEYS),
        required(KEYS, (*KEYS, *COUNTS, "last_event_time", "status", "was_closed")),
        rows(KEYS, "calls are open or closed", "status IN ('open', 'closed')"),
        rows(
            KEYS,
            "closed_at is null if and only if the call is open",
            "(status = 'open') = (closed_at IS NULL)",
        ),
        rows(KEYS, "calls close after their last event", "closed_at > last_event_time"),
        rows(
            KEYS,
            "every call has an event",
            f"{' + '.join(COUNTS)} >= 1 AND {' AND '.join(f'{count} >= 0' for count in COUNTS)}",
        ),
        rows(
            KEYS,
            "payloads come from events on their side",
            " AND ".join(f"({side} IS NULL OR {side}_events > 0)" for side in SIDES.values()),
        ),
        rows(KEYS, "calls begin before they end", "ts <= last_event_time"),
        no_rows(
            "every call begins with an event in silver",
            query,
            step=query,
            near={f"silver_{table}": ("event_time", "ts", "ts") for table in SIDES},
        ),
        fresh("last_event_time", within="24h"),
    )
