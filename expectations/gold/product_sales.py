"""The suite for gold.product_sales: each product's sales since its last tombstone.

If a total has decreased within the last day, a tombstone or a return must explain the decrease. Its offset
must be greater than the row's last offset before the decrease, unless records arrived out of order and the
row was recomputed.
"""

from __future__ import annotations

from great_expectations import ExpectationSuite

from lakehouse.streams.suites import fresh, make_suite, no_rows, required, rows, unique

KEYS = ("product",)

_FALLEN_FOR_NO_REASON = """
    SELECT fallen.product, fallen._commit_version, fallen.before, fallen.total
    FROM (
      SELECT product, feed._commit_version, feed.total AS before, feed.partitions AS merged_before,
        standing.total, standing.partitions,
        standing.made_anew
      FROM gold_product_sales_changes AS feed JOIN {batch} AS standing USING (product)
      WHERE feed._change_type = 'update_preimage' AND standing.total < feed.total
    ) AS fallen
    LEFT ANTI JOIN (SELECT * FROM silver_sales_events WHERE value IS NULL OR value < 0) AS lowering
      ON fallen.product = lowering.product
      AND lowering.offset <= try_element_at(fallen.partitions, lowering.partition).last_offset
      AND (
        fallen.made_anew
        OR lowering.offset > coalesce(try_element_at(merged_before, lowering.partition).last_offset, -1)
      )"""

# A record that explains a decrease still explains it after later records. The step therefore looks only for
# new decreases, and for rows whose offsets have decreased.
_FALLEN_SINCE = (
    _FALLEN_FOR_NO_REASON.replace("= 'update_preimage'", "IN ('update_preimage', 'delete')")
    + """
    UNION ALL
    SELECT product, feed._commit_version, feed.total, standing.total
    FROM gold_product_sales_changes AS feed JOIN {batch} AS standing USING (product)
    WHERE feed._change_type IN ('update_preimage', 'delete')
      AND coalesce(
        exists(
          map_entries(feed.partitions),
          one -> coalesce(
            one.value.last_offset > try_element_at(standing.partitions, one.key).last_offset, true
          )
        ),
        true
      )"""
)
_LAST = "array_max(transform(map_values(partitions), state -> state.last_offset))"
_SINCE = f"{_LAST} - 100000"  # if only an older record explains a decrease, the whole table is checked

_IN_SILVER = "SELECT product FROM {batch} LEFT ANTI JOIN silver_sales_events USING (product)"


def suite() -> ExpectationSuite:
    """Return the suite for gold.product_sales."""
    return make_suite(
        "gold.product_sales",
        unique(KEYS),
        required(KEYS, (*KEYS, "count", "partitions", "made_anew")),
        rows(KEYS, "sales counts are not negative", "count >= 0"),
        rows(
            KEYS,
            "last_event_time is null if and only if there are no sales",
            "(last_event_time IS NULL) = (count = 0)",
        ),
        rows(KEYS, "products without sales have a total of zero", "count <> 0 OR total = 0"),
        no_rows(
            "every product has an event in silver",
            _IN_SILVER,
            step=_IN_SILVER,
            near={"silver_sales_events": ("offset", _LAST, _LAST)},
        ),
        no_rows(
            "totals decrease only because of a tombstone or a return",
            _FALLEN_FOR_NO_REASON,
            step=_FALLEN_SINCE,
            near={"silver_sales_events": ("offset", _SINCE, _LAST)},
        ),
        fresh("last_event_time", within="24h"),
    )
