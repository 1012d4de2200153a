"""sales: running totals per product, and notifications when they reach a threshold.

    sales-events-v1 ── silver.sales_events ─┬─ gold.product_sales ─────── Redis
                                            └─ gold.sales_notifications ─ notifications-events-v1, Redis

A record is {"product", "value", "timestamp"?}. A null value under a product's key is a tombstone: it resets
the product's total to zero. Values are exact decimals and may be negative (a return).
"""

from __future__ import annotations

from decimal import Decimal

from lakehouse.streams.definition import Stream
from lakehouse.streams.kinds import Records, running_totals
from lakehouse.streams.kinds.totals import Notify


def make(threshold: Decimal, notify: Notify) -> Stream:
    """Return the stream; each time a total reaches the threshold, a notification is made.

    With `notify` "every_update", every sale that leaves the total at or above the threshold makes one.
    """
    return running_totals(
        "sales",
        Records("sales-events-v1", table="sales_events"),
        by="product",
        value="value",
        threshold=threshold,
        notify=notify,
        gold="product_sales",
        notifications="sales_notifications",
        to="notifications-events-v1",
        group="products",
        settings_prefix="sales_",
    )
