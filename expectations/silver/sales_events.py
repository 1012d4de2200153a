"""What silver.sales_events must look like: sales of products.

A value below zero is a return; a tombstone has none.
"""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.silver.common import accepted
from lakehouse.kinds.totals import SOURCE
from lakehouse.quality.expectations import make_suite


def suite() -> ExpectationSuite:
    """Return the suite of silver.sales_events."""
    return make_suite("silver.sales_events", *accepted(SOURCE))
