"""sales: running totals per product, and notifications when they reach a threshold.

    sales-events-v1 ── silver.sales_events ─┬─ gold.product_sales ─────── Redis
                                            └─ gold.sales_notifications ─ notifications-events-v1, Redis

A record is {"product", "value", "timestamp"?}. A null value under the key of a product is a tombstone: the
product starts again from zero. Values are exact decimals and may be negative (a return).
"""

from __future__ import annotations

from decimal import Decimal

from lakehouse.kinds import Records, running_totals
from lakehouse.kinds.totals import Notify
from lakehouse.stream import Stream


def make(threshold: Decimal, notify: Notify) -> Stream:
    """Return the stream: each time a total reaches the threshold there is a notification.

    Or with every sale at or above it, if `notify` is "every_update".
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
