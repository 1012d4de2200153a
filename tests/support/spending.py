"""The amounts that users spend in windows of five minutes."""

from __future__ import annotations

from datetime import UTC, datetime

NOW = "2026-03-29T01:07:00Z"
START = datetime(2026, 3, 29, 1, 5, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
MINUTE_MS = 60_000


def spent(user: str, amount: object, minute: int = 0) -> dict[str, object]:
    return {"userId": user, "amount": amount, "timestamp": START_MS + minute * MINUTE_MS}
