"""product_sales and sales_notifications: running totals in the order of each product's records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.oracles.json_text import EXACT, exact_sum, held
from tests.oracles.judging import Event

THRESHOLD = Decimal(2000)


@dataclass(frozen=True)
class Sale(Event):
    """A clean record of sales_events; a record without a value is a tombstone."""

    product: str
    value: Decimal | None


def product_sales(sales: Iterable[Sale]) -> list[dict[str, Any]]:
    """Return the rows of gold.product_sales: each product's sales after its last tombstone."""
    counting = {product: ordered[_start(ordered) :] for product, ordered in in_order(sales).items()}
    return [
        {
            "product": product,
            "total": exact_sum(sale.value for sale in counted if sale.value is not None),
            "count": len(counted),
            "last_event_time": max((sale.event_time_us for sale in counted), default=None),
        }
        for product, counted in counting.items()
    ]


def sales_notifications(
    sales: Iterable[Sale], *, threshold: Decimal = THRESHOLD, every_update: bool = False
) -> list[dict[str, Any]]:
    """Return the rows of gold.sales_notifications: crossings, or all updates at or above the threshold."""
    rows = []
    for ordered in in_order(sales).values():
        for sale, before, total, crossing in _totals(ordered, threshold):
            reaches = total is not None and total >= threshold
            if reaches and (every_update or (before is not None and before < threshold)):
                rows.append(
                    {
                        "product": sale.product,
                        "partition": sale.partition,
                        "offset": sale.offset,
                        "value": total,
                        "crossing": crossing,
                        "event_time": sale.event_time_us,
                    }
                )
    return rows


def _totals(
    ordered: Iterable[Sale], threshold: Decimal
) -> Iterator[tuple[Sale, Decimal | None, Decimal | None, int]]:
    """Yield every sale with the totals before and after it, and the number of crossings so far.

    A total that overflows is None; it has not reached the threshold, but is not below it either.
    """
    total, crossings = Decimal(0), 0
    for sale in ordered:
        if sale.value is None:
            total = Decimal(0)
            continue
        before, total = total, EXACT.add(total, sale.value)
        is_known = held(before) is not None and held(total) is not None
        crossings += is_known and before < threshold <= total
        yield sale, held(before), held(total), crossings


def in_order(sales: Iterable[Sale]) -> dict[str, list[Sale]]:
    """Return the records of every product in order.

    Within a partition, this is offset order. Partitions are merged by the greatest event time so far in each.
    """
    reached: dict[tuple[str, int], int] = {}
    placed: dict[str, list[tuple[int, int, int, Sale]]] = defaultdict(list)
    for sale in sorted(sales, key=lambda sale: sale.offset):
        place = sale.product, sale.partition
        reached[place] = max(sale.event_time_us, reached.get(place, sale.event_time_us))
        placed[sale.product].append((reached[place], sale.partition, sale.offset, sale))
    return {product: [sale for *_, sale in sorted(ones)] for product, ones in placed.items()}


def _start(ordered: list[Sale]) -> int:
    """Return the position of the first record after the last tombstone."""
    return max((place + 1 for place, sale in enumerate(ordered) if sale.value is None), default=0)
