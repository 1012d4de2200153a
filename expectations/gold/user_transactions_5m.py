"""The suite for gold.user_transactions_5m: the amount spent per user and five-minute window."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.gold.windows import aligned, has_events
from lakehouse.streams.suites import fresh, make_suite, required, rows, unique
from lakehouse.streams.window_lengths import Seconds

KEY = ("user_id", "window_start")
LENGTH = Seconds(300)


def suite() -> ExpectationSuite:
    """Return the suite for gold.user_transactions_5m."""
    return make_suite(
        "gold.user_transactions_5m",
        unique(KEY),
        required(KEY, (*KEY, "window_end", "count")),
        *aligned(KEY, LENGTH),
        rows(KEY, "totals are above zero", "total_amount IS NULL OR total_amount > 0"),
        rows(KEY, "every window has a transaction", "count >= 1"),
        has_events("silver_transactions", {"user_id": "user_id"}, LENGTH),
        fresh("window_end", within="24h"),
    )
