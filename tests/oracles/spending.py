"""Aggregates of transactions, as the simulation's tables of the kind `sql` declare them.

spending_5m       per user and five minutes, without amounts of 20: count, sum, smallest amount, and last
                  amount by event time, then by partition and offset
spending_by_size  per size (large: above 15): count, mean, distinct users and latest event time
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests.oracles.json_text import EXACT, exact_sum
from tests.oracles.transactions import WINDOW_US, Transaction

LEFT_OUT, LARGE = 20, 15
_STEP = Decimal("1e-9")  # decimal(38,9)


def spending_5m(transactions: Iterable[Transaction]) -> list[dict[str, Any]]:
    """Return the rows of gold.spending_5m."""
    groups: dict[tuple[str, int], list[Transaction]] = defaultdict(list)
    for one in transactions:
        if one.amount != LEFT_OUT:
            groups[one.user_id, one.event_time_us // WINDOW_US * WINDOW_US].append(one)
    return [
        {
            "user_id": user_id,
            "window_start": start_us,
            "window_end": start_us + WINDOW_US,
            "count": len(group),
            "total": exact_sum([one.amount for one in group]),
            "least": min(one.amount for one in group),
            "last_amount": max(group, key=_place).amount,
        }
        for (user_id, start_us), group in groups.items()
    ]


def spending_by_size(transactions: Iterable[Transaction]) -> list[dict[str, Any]]:
    """Return the rows of gold.spending_by_size."""
    groups: dict[str, list[Transaction]] = defaultdict(list)
    for one in transactions:
        groups["large" if one.amount > LARGE else "small"].append(one)
    return [
        {
            "size": size,
            "count": len(group),
            "mean": _mean([one.amount for one in group]),
            "users": len({one.user_id for one in group}),
            "last_event_time": max(one.event_time_us for one in group),
        }
        for size, group in groups.items()
    ]


def _place(one: Transaction) -> tuple[int, int, int]:
    return one.event_time_us, one.partition, one.offset


def _mean(amounts: list[Decimal]) -> Decimal:
    total = EXACT.divide(sum(amounts, Decimal(0)), Decimal(len(amounts)))
    return total.quantize(_STEP, rounding=ROUND_HALF_UP, context=EXACT)
