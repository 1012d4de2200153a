"""user_transactions_5m: the amount that a user spent in five minutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.oracles.json_text import exact_sum
from tests.oracles.judging import MINUTE_US, Event

WINDOW_US = 5 * MINUTE_US


@dataclass(frozen=True)
class Transaction(Event):
    """A clean record of transactions."""

    user_id: str
    amount: Decimal


def user_transactions_5m(transactions: Iterable[Transaction]) -> list[dict[str, Any]]:
    """Return the rows of gold.user_transactions_5m."""
    groups: dict[tuple[str, int], list[Decimal]] = defaultdict(list)
    for one in transactions:
        groups[one.user_id, one.event_time_us // WINDOW_US * WINDOW_US].append(one.amount)
    return [
        {
            "user_id": user_id,
            "window_start": start_us,
            "window_end": start_us + WINDOW_US,
            "total_amount": exact_sum(amounts),
            "count": len(amounts),
        }
        for (user_id, start_us), amounts in groups.items()
    ]
