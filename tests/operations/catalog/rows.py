"""The rows of gold.user_transactions_5m that clients ask for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
END = NOON + timedelta(minutes=5)
TRANSACTIONS = [
    ("Zoë", NOON, END, Decimal("12345678901234567890.123456789"), 2),
    ("it's me", NOON, END, Decimal("0.100000000"), 1),
]
