"""The suite for gold.sales_notifications: sales that raised their product's total to the threshold.

A micro-batch writes notifications before it writes product_sales, which may therefore be behind. A
notification's product must have a row only if product_sales has already merged the notification's record.
"""

from __future__ import annotations

from great_expectations import ExpectationSuite

from lakehouse.streams.suites import fresh, make_suite, no_rows, required, rows, unique

KEYS = ("product", "partition", "offset")

_MERGED = """
    SELECT partition, max(state.last_offset) AS last_offset
    FROM (SELECT explode(partitions) AS (partition, state) FROM gold_product_sales)
    GROUP BY partition"""


def suite() -> ExpectationSuite:
    """Return the suite for gold.sales_notifications."""
    names = ", ".join(KEYS)
    below = f"SELECT {names}, value FROM {{batch}} WHERE value < (SELECT sales_threshold FROM limits)"
    unsold = (
        f"SELECT {names} FROM {{batch}} "
        f"LEFT ANTI JOIN (SELECT * FROM silver_sales_events WHERE value IS NOT NULL) USING ({names})"
    )
    return make_suite(
        "gold.sales_notifications",
        unique(KEYS),
        required(KEYS, (*KEYS, "value", "crossing", "event_time")),
        rows(KEYS, "crossings are numbered from 1", "crossing >= 1"),
        no_rows("totals have reached the threshold", below, step=below),
        no_rows(
            "every notification has a sale in silver",
            unsold,
            step=unsold,
            near={"silver_sales_events": ("event_time", "event_time", "event_time")},
        ),
        no_rows(
            "every product has a row in product_sales",
            f"SELECT {names} FROM {{batch}} JOIN ({_MERGED}) USING (partition) "
            f"LEFT ANTI JOIN gold_product_sales USING (product) WHERE offset <= last_offset",
            # The step also checks notifications that product_sales has not merged, because later steps do not
            # read them again.
            step=f"SELECT {names} FROM {{batch}} LEFT ANTI JOIN gold_product_sales USING (product)",
        ),
        fresh("event_time", within="24h"),
    )
