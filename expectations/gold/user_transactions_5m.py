"""What gold.user_transactions_5m must look like: what each user has spent in every five minutes."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.gold.windows import aligned, has_events
from lakehouse.quality.expectations import fresh, make_suite, required, rows, unique
from lakehouse.streams.transactions import SCHEMA, WINDOWS

KEY = WINDOWS.keys


def suite() -> ExpectationSuite:
    """Return the suite of gold.user_transactions_5m."""
    return make_suite(
        "gold.user_transactions_5m",
        unique(KEY),
        required(KEY, [name for name in SCHEMA.names if name != "total_amount"]),
        *aligned(KEY, WINDOWS.length_s),
        rows(KEY, "totals are above zero", "total_amount IS NULL OR total_amount > 0"),
        rows(KEY, "every window has a transaction", "count >= 1"),
        has_events("silver_transactions", {"user_id": "user_id"}, WINDOWS.length_s),
        fresh("window_end"),
    )
